"""A job that nobody watched: what sleep tells, and what is said of a log that is silent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from cases import IN_BACKWARD, IN_BARRIER, IN_LOAD, MAIN, SECOND, job, rank, torch, user
from msgspec.structs import replace
from processes import ending

from lightning_hangcheck.attach.visit import (
    kept_output,
    of_a_visit,
    where_nobody_moves,
    with_silences,
)
from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.case import Limits, RankView
from lightning_hangcheck.observe.run_record import RankNote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

LIMITS = of_a_visit(Limits())
NOW_NS = 1_000_000_000_000
BEAT = Beat(pid=2, rank=1, beats=5, phase="training_step", pulse_ns=NOW_NS)
WATCHED_S = 2.2
MOVING = ((MAIN, user("load", 41)), (MAIN, user("parse", 7)), (MAIN, user("store", 9)))


def judged(
    *views: RankView, watched_s: float = WATCHED_S, notes: tuple[RankNote, ...] = ()
) -> Verdict:
    known = {note.rank: note for note in notes}
    silent = with_silences(views, watched_s, LIMITS, NOW_NS, known)
    limits = where_nobody_moves(LIMITS, silent, known)
    return judge(job(*silent, limits=limits, seen_in="attach"))


def note(number: int, silent_s: float) -> RankNote:
    return RankNote(
        rank=number,
        pid=number,
        started_ticks=1,
        silent_for_s=silent_s,
        idle_for_s=silent_s,
        circling_for_s=silent_s,
    )


def slept(view: RankView, seconds: float | None) -> RankView:
    return replace(view, slept_for_s=seconds)


def waiting(seconds: float) -> RankView:
    return slept(rank(0, IN_BARRIER), seconds)


def test_a_rank_that_slept_long_and_is_waited_for_hangs() -> None:
    verdict = judged(waiting(400.0), slept(rank(1, IN_LOAD), 398.0))
    assert (verdict.verdict, verdict.culprits, verdict.stalled_for_s) == ("hang", (1,), 398.0)
    assert "its main thread had not run for 7 min when hangcheck attached" in {
        item.text for item in verdict.evidence
    }


def beaten(ago_s: float, beats: int = 5) -> RankView:
    """Rank 1 stands in its own code, and has last beaten so long ago."""
    last_ns = NOW_NS - int(ago_s * SECOND)
    return replace(rank(1, IN_LOAD), beat=replace(BEAT, beats=beats, last_beat_ns=last_ns))


def computing(slept_s: float = 0.0) -> RankView:
    return slept(rank(1, IN_LOAD, cpu=0.9), slept_s)


STUCK = rank(1, IN_LOAD)
IN_FORWARD = (MAIN, torch("DistributedDataParallel._pre_forward", "nn/parallel/distributed.py"))
MOVES = slept(rank(1, *MOVING, cpu=0.9), 0.0)
GOES_ON = slept(rank(1, IN_LOAD, (*IN_LOAD[:-1], user("load", 42)), IN_LOAD, cpu=0.9), 0.0)
SITUATIONS: dict[str, list[tuple[str, RankView, RankView]]] = {
    "one that slept for seconds is only suspected": [("suspect", waiting(9.0), slept(STUCK, 8.0))],
    "one that records was not silent for longer than since its last beat": [
        ("healthy", waiting(400.0), slept(beaten(2.0), 398.0)),
        ("hang", waiting(400.0), slept(beaten(2.0, beats=0), 398.0)),
        ("suspect", waiting(0.3), slept(beaten(60.0), 0.3)),
        ("hang", waiting(400.0), slept(beaten(60.0), 50.0)),
    ],
    # at its second pass DDP agrees on its buckets
    "a rank that waits in DDP's forward waits for the others": [
        ("suspect", slept(rank(0, IN_FORWARD), 34.0), slept(STUCK, 4.4))
    ],
    # a download, a tracker's run, a save: all of these do something within two seconds
    "a wait of seconds is suspected only where nobody moves": [
        ("suspect", waiting(3.0), slept(STUCK, 2.5)),
        ("healthy", waiting(3.0), computing()),
    ],
    # it wakes now and then, so it may have come to this line just now
    "one that polls hangs once others waited longer than any limit": [
        ("suspect", waiting(100.0), slept(STUCK, 0.4)),
        ("hang", waiting(301.0), slept(STUCK, 0.4)),
    ],
    "one that moves is healthy, and slow after the last limit": [
        ("healthy", waiting(100.0), MOVES),
        ("slow", waiting(301.0), MOVES),
        ("healthy", waiting(100.0), slept(rank(1, IN_LOAD, bytes_s=200_000), 0.2)),
    ],
    "a long computation is suspected only when others waited long": [
        ("healthy", waiting(9.0), GOES_ON),
        ("suspect", waiting(45.0), GOES_ON),
        ("hang", waiting(400.0), GOES_ON),
    ],
    "one long call is no suspect before the last limit": [
        ("healthy", waiting(45.0), computing()),
        ("hang", waiting(400.0), computing()),
    ],
    "a stopped rank is proven at once": [
        ("hang", waiting(3.0), slept(rank(1, IN_LOAD, state="T"), 3.0))
    ],
    # it may have computed for a minute and come a second ago
    "a wait is not counted from the last beat of who waits": [
        ("healthy", replace(waiting(1.0), beat=beaten(60.0).beat), computing())
    ],
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_what_the_kernel_and_the_page_tell_of_two_ranks(situation: str) -> None:
    for expected, waits, other in SITUATIONS[situation]:
        assert judged(waits, other).verdict == expected


def test_ranks_that_diverged_are_suspected_also_where_who_left_came_first() -> None:
    others = [slept(rank(one, IN_BACKWARD), 19.07) for one in (1, 2)]
    verdict = judged(waiting(19.08), *others)
    assert (verdict.verdict, verdict.culprits) == ("suspect", (0,))


def test_where_the_kernel_tells_nothing_what_we_watched_is_all_there_is() -> None:
    unknown = slept(rank(0, IN_BARRIER), None), slept(STUCK, None)
    verdict = judged(*unknown, watched_s=5.0)
    assert (verdict.verdict, verdict.stalled_for_s) == ("suspect", 5.0)


def test_ranks_that_all_burn_in_one_collective_are_suspected_as_nobody_knows_since_when() -> None:
    """CUDA waits by spinning, so that the kernel tells nothing of what was before the visit."""
    burning = [slept(rank(one, IN_BARRIER, cpu=0.9), 0.0) for one in (0, 1)]
    verdict = judged(*burning)
    assert (verdict.verdict, verdict.cause) == ("suspect", "unknown")
    assert "all 2 ranks have waited in barrier" in verdict.summary


@pytest.mark.parametrize(
    ("other", "silent_s", "circling_s", "expected"),
    [
        (slept(STUCK, 0.3), (90.0, 80.0), 80.0, "hang"),
        (slept(STUCK, 0.3), (0.5, 0.5), 0.5, "healthy"),
        (slept(beaten(0.2), 0.3), (90.0, 80.0), 80.0, "healthy"),
        (MOVES, (90.0, 80.0), 1.0, "healthy"),
        (MOVES, (400.0, 400.0), 400.0, "hang"),
    ],
    ids=["it was silent", "it recovered", "it has beaten", "it moves", "it goes in circles"],
)
def test_what_a_watcher_knows_counts_where_its_looks_woke_the_ranks(
    other: RankView, silent_s: tuple[float, float], circling_s: float, expected: str
) -> None:
    assert judged(waiting(0.3), slept(STUCK, 0.3)).verdict == "suspect"
    notes = note(0, silent_s[0]), replace(note(1, silent_s[1]), circling_for_s=circling_s)
    verdict = judged(waiting(0.3), other, notes=notes)
    assert verdict.verdict == expected
    if expected == "hang":
        assert (verdict.culprits, verdict.stalled_for_s) == ((1,), silent_s[1])


@contextmanager
def running(log: Path | int, *options: str, **variables: str) -> Iterator[int]:
    """A Python whose standard output goes to this file or descriptor."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *options, "-c", "import sys; sys.stdin.read()"]
    output = log if isinstance(log, int) else log.open("ab")
    process = subprocess.Popen(
        command, env={**environment, **variables}, stdin=subprocess.PIPE, stdout=output
    )
    with ending(process):
        if not isinstance(output, int):
            output.close()
        yield process.pid


def silent_log(tmp_path: Path, seconds: float = 35.0) -> Path:
    log = tmp_path / "log.txt"
    log.touch()
    os.utime(log, (time.time() - seconds,) * 2)
    return log


def at_work(*pids: int) -> Case:
    """Ranks of these processes, each seen in another place at each look."""
    moving = [(MAIN, user(f"compute_{number}", 50 + number)) for number in range(3)]
    views = (rank(number, *moving, silent=1.0, cpu=0.98) for number in range(len(pids)))
    return job(*(replace(view, pid=pid) for view, pid in zip(views, pids, strict=True)))


def said(case: Case) -> str | None:
    return kept_output(case, judge(case))


def test_a_file_that_does_not_grow_while_the_rank_works_is_said_with_the_remedy(
    tmp_path: Path,
) -> None:
    with running(silent_log(tmp_path)) as pid:
        told = said(at_work(pid))
    assert told is not None
    assert re.sub(r"for \d+ s", "for some time", told) == (
        "rank 0 works (0.98 of a core), and what is printed may still be in its buffer: "
        "standard output is a file that has not grown for some time, and PYTHONUNBUFFERED is not "
        "set; next time: PYTHONUNBUFFERED=1, python -u, or print(..., flush=True)"
    )


def test_a_pipe_may_be_why_a_log_is_silent() -> None:
    reader, writer = os.pipe()
    try:
        with running(writer) as pid:
            told = said(at_work(pid))
    finally:
        os.close(reader)
        os.close(writer)
    assert told is not None
    assert (
        "standard output is a pipe and PYTHONUNBUFFERED is not set, so if the log is silent, that "
        "may be why; next time: "
    ) in told


@pytest.mark.parametrize(
    ("options", "variables"), [(("-u",), {}), ((), {"PYTHONUNBUFFERED": "1"})], ids=str
)
def test_nothing_is_said_where_lines_come_at_once(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    with running(silent_log(tmp_path), *options, **variables) as pid:
        assert said(at_work(pid)) is None
