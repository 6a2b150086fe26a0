"""Work that fails becomes a gap; work that blocks is left behind, up to a bound."""

from __future__ import annotations

import threading

import pytest

from lightning_hangcheck.look.proc import guarded
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
