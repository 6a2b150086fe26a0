"""Who hears whom, in a real folder: nodes of one process."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from cases import IN_BARRIER, job, rank
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.flight import (
    CollectiveRecord,
    FlightRecord,
    GroupFamily,
    GroupRun,
)
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.nodes.bounds import MOST_WORDS
from lightning_hangcheck.nodes.circle import Circle
from lightning_hangcheck.nodes.digest import digest_of
from lightning_hangcheck.nodes.encoding import JudgesWord, pack
from lightning_hangcheck.nodes.exchange import Exchange
from lightning_hangcheck.nodes.folding import RankDigest
from lightning_hangcheck.nodes.judging.succession import Role
from lightning_hangcheck.nodes.places.meeting_place import FolderPlace

if TYPE_CHECKING:
    from pathlib import Path

CASE = job(rank(0, IN_BARRIER))


def test_nodes_hear_each_other_and_the_others_follow_the_first(tmp_path: Path) -> None:
    nodes = [
        Circle(NodePlace(number=n, nnodes=2), [FolderPlace(tmp_path / "meet")]) for n in range(2)
    ]
    with closing(nodes[0]) as first, closing(nodes[1]) as second:
        for node in nodes:
            node.start()
        stamps = iter(range(1_000))

        def heard() -> bool:
            for number, node in enumerate((first, second)):
                node.tell(digest_of(CASE, number, next(stamps)), None)
            return second.role == Role(judge=0) and set(first.heard) == {1}

        until(heard, "the nodes to hear each other")
        assert first.role == Role(judges=True)

        def clock_known() -> bool:
            heard()
            return 1 in first.clocks

        until(clock_known, "how far the clocks are apart")
        clock = first.clocks[1]
        assert abs(clock.ahead_s) <= clock.within_s + 0.001, "they have one clock"
        assert second.clocks == {}


def test_what_an_earlier_job_left_is_nobody(tmp_path: Path) -> None:
    """It does not change: such a node is not there."""
    folder = FolderPlace(tmp_path / "meet")
    folder.post("node-1", pack(digest_of(CASE, 1, 7)))
    with closing(Circle(NodePlace(number=0, nnodes=2), [folder])) as first:
        for stamp in range(10):
            first.tell(digest_of(CASE, 0, stamp), None)
            first.take_turn()
        assert first.heard == {}
        folder.post("node-1", pack(digest_of(CASE, 1, 8)))
        first.take_turn()
        assert set(first.heard) == {1}, "it has changed"


def test_bytes_that_are_no_digest_are_said_once_and_harm_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = FolderPlace(tmp_path / "meet")
    folder.post("node-1", b"none of ours")
    with closing(Circle(NodePlace(number=0, nnodes=2), [folder])) as first:
        first.tell(digest_of(CASE, 0, 1), None)
        first.take_turn()
        first.take_turn()
    assert capfd.readouterr().err.count("what node 1 tells is not used") == 1
    assert folder.look("first")


class Odd:
    """A folder in which the word of one node cannot be read at all."""

    def __init__(self, folder: FolderPlace, key: str, error: Exception) -> None:
        self._folder, self._key, self._error = folder, key, error
        self.where = folder.where

    def post(self, key: str, value: bytes) -> None:
        self._folder.post(key, value)

    def look(self, key: str) -> bytes | None:
        if key == self._key:
            raise self._error
        return self._folder.look(key)

    def close(self) -> None:
        self._folder.close()


@pytest.mark.parametrize(
    "error", [MeetingFailed("it is a link", "remove it"), RuntimeError("anything")]
)
def test_a_node_that_cannot_hear_tells_all_the_same(error: Exception, tmp_path: Path) -> None:
    folder = FolderPlace(tmp_path / "meet")
    with closing(Circle(NodePlace(number=0, nnodes=2), [Odd(folder, "node-1", error)])) as first:
        first.tell(digest_of(CASE, 0, 1), None)
        first.take_turn()
    assert folder.look("node-0") is not None
    assert folder.look("first") is not None


def test_one_odd_digest_silences_neither_the_nodes_after_it_nor_this_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A group with a name of 5,000 digits, which Python does not read as a number."""
    family = GroupFamily((0, 1, 1), (GroupRun(0, 1, 1, "1" * 5_000, 1),))
    flight = FlightRecord(taken_ns=1, groups=(CollectiveRecord(group="1"),))
    odd = digest_of(CASE, 1, 1)
    told = RankDigest(RankView(rank=0, flight=flight), (), (family,))
    state = replace(odd.nodes[0], ranks=(told,))
    folder = FolderPlace(tmp_path / "meet")
    with closing(Circle(NodePlace(number=0, nnodes=3), [folder])) as first:
        for stamp in range(1, 4):
            folder.post("node-1", pack(replace(odd, nodes=(replace(state, stamp=stamp),))))
            folder.post("node-2", pack(digest_of(CASE, 2, stamp)))
            first.tell(digest_of(CASE, 0, stamp), None)
            first.take_turn()
        assert (set(first.heard), set(first.unused)) == ({2}, {1})
    assert folder.look("first")
    said = capfd.readouterr().err
    assert said.count("what node 1 tells is not used") <= 1, "it is said once by a process"
    assert "nodes do not hear each other" not in said


def test_words_of_no_more_than_a_few_who_judged_are_kept(tmp_path: Path) -> None:
    """A stranger could make up another one in each of his words."""
    place = NodePlace(number=1, nnodes=100)
    way = Exchange(place, FolderPlace(tmp_path / "meet"), listens=True)
    with closing(way):
        for judge in range(2, 200):
            (state,) = digest_of(CASE, judge, 1).nodes
            word = JudgesWord(stamp=1, state=replace(state, ranks=()))
            for stamp in (1, 2):
                way._take_word("successor", pack(replace(word, stamp=stamp)))  # noqa: SLF001
    assert sorted(way.words) == list(range(100 - MOST_WORDS, 100))
