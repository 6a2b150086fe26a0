"""What a node tells comes out as it went in, and carries no clock."""

from __future__ import annotations

from cases import IN_BARRIER, IN_LOAD, NOW_NS, job, rank, worker

from lightning_hangcheck.judge.joining import rebased
from lightning_hangcheck.nodes.encoding import pack, read_word
from lightning_hangcheck.nodes.word import TAKEN_NS, word_of

CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD, children=(worker(0, IN_LOAD),)), world_size=8)
LARGE = job(rank(0, IN_BARRIER), rank(1, IN_BARRIER), rank(2, IN_LOAD), world_size=8)


def test_a_word_comes_out_as_it_went_in_on_another_clock() -> None:
    word, _ = read_word(pack(word_of(CASE, 0, 1)))
    views = tuple(line.told.view for line in word.lines)
    assert views == rebased(CASE, TAKEN_NS - NOW_NS).ranks


def test_the_same_calls_and_stacks_are_told_once() -> None:
    word = word_of(CASE, 0, 1)
    assert len(word.frames) == len({*IN_BARRIER, *IN_LOAD})
    assert len(word.stacks) == 2


def test_a_rank_that_gets_on_tells_no_stacks() -> None:
    (line,) = word_of(job(rank(0, IN_LOAD, silent=0.2)), 0, 1).lines
    assert (line.told.view.processes, line.told.stacks, line.told.view.pid) == ((), (), 100)


def test_in_a_large_job_evidence_is_told_where_it_is_asked_for() -> None:
    waits, loads = word_of(LARGE, 0, 1, folded_above=0).lines
    assert (waits.ranks, loads.ranks) == ((0, 1), (2, 2))
    assert not waits.told.view.processes
    asked = word_of(LARGE, 0, 1, folded_above=0, wanted=[1])
    assert [bool(line.told.view.processes) for line in asked.lines] == [True, False]


def test_a_calm_rank_takes_no_hundred_bytes_a_second() -> None:
    calm = job(*(rank(number, silent=0.2) for number in range(8)), world_size=131_072)
    assert len(pack(word_of(calm, 0, 1))) / 8 < 100
