"""Work that fails becomes a gap; work that blocks is left behind, up to a bound."""

from __future__ import annotations

import threading

import pytest

from lightning_hangcheck.look.proc import each_within, guarded
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.time_limit import MOST_LEFT_BEHIND, MOST_OF_ONE, NoAnswer, within


def test_a_probe_that_raises_becomes_a_gap_that_names_the_error() -> None:
    def broken() -> int:
        raise ValueError("half a line")

    assert guarded("stack", "stack of pid 7", 3, broken) == (
        None,
        (Gap("stack of pid 7", 3, "the probe failed (ValueError: half a line)", "stack"),),
    )


def test_bounded_work_gives_its_result_or_raises_its_error() -> None:
    def denied() -> None:
        raise PermissionError(13, "Permission denied")

    assert within(10.0, lambda: "seen") == "seen"
    with pytest.raises(PermissionError):
        within(10.0, denied)


def test_no_more_work_is_begun_while_sixteen_pieces_are_blocked() -> None:
    release = threading.Event()
    ended = threading.Semaphore(0)

    def block() -> None:
        release.wait()
        ended.release()

    for _ in range(MOST_LEFT_BEHIND):
        with pytest.raises(NoAnswer):
            within(0.001, block)
    with pytest.raises(NoAnswer, match="16 earlier"):
        within(10.0, lambda: "never begun")
    release.set()
    for _ in range(MOST_LEFT_BEHIND):
        assert ended.acquire(timeout=120)
    while any(thread.name == "hangcheck-bounded" for thread in threading.enumerate()):
        pass
    assert within(10.0, lambda: "again") == "again"


def test_a_process_whose_reads_block_costs_its_own_places_and_no_other_reads() -> None:
    release = threading.Event()
    for _ in range(MOST_OF_ONE):
        with pytest.raises(NoAnswer, match=r"no answer within 0\.001 s"):
            within(0.001, release.wait, of=7)
    with pytest.raises(NoAnswer, match="3 earlier reads of pid 7 are still blocked"):
        within(10.0, lambda: "never begun", of=7)
    assert within(10.0, lambda: "seen", of=8) == "seen"
    assert within(10.0, lambda: "read") == "read"
    release.set()
    while any(thread.name == "hangcheck-bounded" for thread in threading.enumerate()):
        pass
    assert within(10.0, lambda: "again", of=7) == "again"


def test_the_same_work_for_many_processes_takes_one_thread() -> None:
    threads: set[int] = set()

    def work(pid: int) -> int:
        threads.add(threading.get_ident())
        if pid == 3:
            raise PermissionError(13, "Permission denied")
        return 2 * pid

    found = each_within(10.0, work, [5, 3, 5, 7])
    assert list(found) == [5, 3, 7]
    assert (found[5], found[7]) == (10, 14)
    assert isinstance(found[3], PermissionError)
    assert len(threads) == 1


def test_one_process_that_blocks_costs_its_own_answer_only() -> None:
    release = threading.Event()

    def work(pid: int) -> int:
        if pid == 2:
            release.wait()
        return pid

    found = each_within(0.2, work, [1, 2, 3, 4])
    release.set()
    assert (found[1], found[3], found[4]) == (1, 3, 4)
    assert isinstance(found[2], NoAnswer)
