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
from cases import IN_BARRIER, IN_LOAD, MAIN, job, rank, user
from msgspec.structs import replace
from processes import end

from lightning_hangcheck.attach.visit import (
    kept_output,
    of_a_visit,
    stands_still,
    unknown_sleep,
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


def test_one_that_slept_for_seconds_is_only_suspected() -> None:
    assert judged(waiting(9.0), slept(rank(1, IN_LOAD), 8.0)).verdict == "suspect"


def test_where_the_kernel_tells_nothing_what_we_watched_is_all_there_is() -> None:
    unknown = slept(rank(0, IN_BARRIER), None), slept(rank(1, IN_LOAD), None)
    verdict = judged(*unknown, watched_s=5.0)
    assert (verdict.verdict, verdict.stalled_for_s) == ("suspect", 5.0)


def test_a_rank_that_records_was_not_silent_for_longer_than_since_its_last_beat() -> None:
    """A beat from another thread, or a sleep that the kernel counts too long."""
    recent = replace(BEAT, last_beat_ns=NOW_NS - 2_000_000_000)
    slept_long = slept(rank(1, IN_LOAD), 398.0)
    assert judged(waiting(400.0), replace(slept_long, beat=recent)).verdict == "healthy"
    nothing_said = replace(recent, beats=0)
    assert judged(waiting(400.0), replace(slept_long, beat=nothing_said)).verdict == "hang"


def test_a_wait_of_seconds_is_suspected_only_where_nobody_moves() -> None:
    """A download, a tracker's run, a save: all of these do something within two seconds."""
    assert judged(waiting(3.0), slept(rank(1, IN_LOAD), 2.5)).verdict == "suspect"
    assert judged(waiting(3.0), slept(rank(1, IN_LOAD, cpu=0.9), 0.0)).verdict == "healthy"


def test_ranks_that_all_burn_in_one_collective_are_suspected_as_nobody_knows_since_when() -> None:
    """CUDA waits by spinning, so that the kernel tells nothing of what was before the visit."""
    burning = [slept(rank(one, IN_BARRIER, cpu=0.9), 0.0) for one in (0, 1)]
    verdict = judged(*burning)
    assert (verdict.verdict, verdict.cause) == ("suspect", "unknown")
    assert "all 2 ranks have waited in barrier" in verdict.summary


def test_one_that_polls_hangs_once_others_waited_longer_than_any_limit() -> None:
    """It wakes now and then, so it may have come to this line just now."""
    assert judged(waiting(100.0), slept(rank(1, IN_LOAD), 0.4)).verdict == "suspect"
    verdict = judged(waiting(301.0), slept(rank(1, IN_LOAD), 0.4))
    assert (verdict.verdict, verdict.stalled_for_s) == ("hang", 301.0)


def test_one_that_moves_is_healthy_however_long_the_others_wait_and_slow_after_the_last_limit() -> (
    None
):
    moving = slept(rank(1, *MOVING, cpu=0.9), 0.0)
    assert judged(waiting(100.0), moving).verdict == "healthy"
    assert judged(waiting(301.0), moving).verdict == "slow"


def test_one_that_writes_bytes_is_healthy() -> None:
    assert judged(waiting(100.0), slept(rank(1, IN_LOAD, bytes_s=200_000), 0.2)).verdict == (
        "healthy"
    )


def test_a_long_computation_is_suspected_only_when_others_waited_long() -> None:
    elsewhere = (*IN_LOAD[:-1], user("load", 42))
    busy = slept(rank(1, IN_LOAD, elsewhere, IN_LOAD, cpu=0.9), 0.0)
    assert judged(waiting(9.0), busy).verdict == "healthy"
    assert judged(waiting(45.0), busy).verdict == "suspect"
    assert judged(waiting(400.0), busy).verdict == "hang"


def test_one_long_call_is_no_suspect_before_the_last_limit() -> None:
    busy = slept(rank(1, IN_LOAD, cpu=0.9), 0.0)
    assert judged(waiting(45.0), busy).verdict == "healthy"
    assert judged(waiting(400.0), busy).verdict == "hang"


def test_a_stopped_rank_is_proven_at_once() -> None:
    verdict = judged(waiting(3.0), slept(rank(1, IN_LOAD, state="T"), 3.0))
    assert (verdict.verdict, verdict.cause) == ("hang", "process_stopped")


def test_what_a_watcher_knows_counts_where_its_looks_woke_the_ranks() -> None:
    woken = waiting(0.3), slept(rank(1, IN_LOAD), 0.3)
    assert judged(*woken).verdict == "suspect"
    verdict = judged(*woken, notes=(note(0, 90.0), note(1, 80.0)))
    assert (verdict.verdict, verdict.culprits, verdict.stalled_for_s) == ("hang", (1,), 80.0)


def test_a_rank_that_has_just_beaten_is_not_silent_whatever_a_watcher_noted() -> None:
    beaten = replace(rank(1, IN_LOAD), beat=replace(BEAT, last_beat_ns=NOW_NS - 200_000_000))
    notes = (note(0, 90.0), note(1, 80.0))
    assert judged(waiting(0.3), slept(beaten, 0.3), notes=notes).verdict == "healthy"


def test_a_rank_that_moves_before_our_eyes_is_not_silent_whatever_a_watcher_noted() -> None:
    moving = replace(note(1, 80.0), circling_for_s=1.0)
    verdict = judged(waiting(0.3), rank(1, *MOVING, cpu=0.9), notes=(note(0, 90.0), moving))
    assert verdict.verdict == "healthy"


def test_a_watcher_that_saw_a_rank_go_in_circles_makes_it_no_healthy_one() -> None:
    notes = (note(0, 400.0), note(1, 400.0))
    verdict = judged(waiting(0.3), rank(1, *MOVING, cpu=0.9), notes=notes)
    assert (verdict.verdict, verdict.culprits) == ("hang", (1,))


def test_after_a_recovery_the_notes_are_short_and_the_job_is_healthy() -> None:
    notes = (note(0, 0.5), note(1, 0.5))
    assert judged(waiting(0.3), slept(rank(1, IN_LOAD), 0.3), notes=notes).verdict == "healthy"


def test_one_that_beats_and_stands_still_is_silent_since_its_last_beat() -> None:
    """Woken by a look, it has hardly slept: enough for a suspicion."""
    silent = replace(rank(1, IN_LOAD), beat=replace(BEAT, last_beat_ns=NOW_NS - 60_000_000_000))
    (_, view) = with_silences((waiting(0.3), slept(silent, 0.3)), WATCHED_S, LIMITS, NOW_NS)
    assert (view.silent_for_s, view.idle_for_s) == (60.0, 10.0)
    assert judged(waiting(0.3), slept(silent, 0.3)).verdict == "suspect"
    assert judged(waiting(400.0), slept(silent, 50.0)).verdict == "hang"


def test_a_wait_is_not_counted_from_the_last_beat_of_who_waits() -> None:
    """It may have computed for a minute and come a second ago."""
    late = replace(waiting(1.0), beat=replace(BEAT, last_beat_ns=NOW_NS - 60_000_000_000))
    assert judged(late, slept(rank(1, IN_LOAD, cpu=0.9), 0.0)).verdict == "healthy"


def test_a_job_in_which_nobody_does_anything_stands_still() -> None:
    assert stands_still([waiting(90.0), slept(rank(1, IN_LOAD), 80.0)])
    assert not stands_still([waiting(90.0), rank(1, *MOVING, cpu=0.9)])
    assert not stands_still([waiting(90.0), rank(1, IN_LOAD, cpu=0.9)])
    assert not stands_still([])


def test_a_short_sleep_of_a_job_that_stands_still_is_a_gap() -> None:
    """Another tool's look may have woken it."""
    short = [slept(rank(1, IN_LOAD), 0.3)]
    (gap,) = unknown_sleep(short)
    assert "it last ran 0.3 s before this visit" in gap.why
    assert unknown_sleep([*short, waiting(9.0)]) == ()
    assert unknown_sleep(short, {1: note(1, 80.0)}) == ()
    assert unknown_sleep([slept(rank(1, *MOVING, cpu=0.9), 0.0)]) == ()


def test_what_the_kernel_did_not_tell_is_a_gap() -> None:
    gaps = unknown_sleep([waiting(9.0), slept(rank(1, IN_LOAD), None)])
    assert [gap.rank for gap in gaps] == [1]


WAITS = "import sys; sys.stdin.read()"


@contextmanager
def running(log: Path | int, *options: str, **variables: str) -> Iterator[int]:
    """A Python whose standard output goes to this file or descriptor."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *options, "-c", WAITS]
    output = log if isinstance(log, int) else log.open("ab")
    process = subprocess.Popen(
        command, env={**environment, **variables}, stdin=subprocess.PIPE, stdout=output
    )
    try:
        if not isinstance(output, int):
            output.close()
        yield process.pid
    finally:
        end(process)


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


def test_a_pipe_does_not_prove_its_silence() -> None:
    with running(subprocess.PIPE) as pid:
        text = said(at_work(pid))
    assert text is not None
    assert "standard output is a pipe and PYTHONUNBUFFERED is not set, so if the log is" in text


@pytest.mark.parametrize(
    ("options", "variables"), [(("-u",), {}), ((), {"PYTHONUNBUFFERED": "1"})], ids=str
)
def test_nothing_is_said_where_lines_come_at_once(
    tmp_path: Path, options: tuple[str, ...], variables: dict[str, str]
) -> None:
    with running(silent_log(tmp_path), *options, **variables) as pid:
        assert said(at_work(pid)) is None


def test_nothing_is_said_of_a_log_that_grows_or_of_no_log(tmp_path: Path) -> None:
    with running(silent_log(tmp_path, 0.0)) as pid:
        assert said(at_work(pid)) is None
    with running(subprocess.DEVNULL) as pid:
        assert said(at_work(pid)) is None


def test_nothing_is_said_of_a_job_that_does_not_work(tmp_path: Path) -> None:
    with running(silent_log(tmp_path)) as pid:
        assert said(job(replace(rank(0, IN_LOAD, silent=1.0), pid=pid))) is None
        hung = job(replace(rank(0, IN_LOAD, silent=400.0), pid=pid))
        assert judge(hung).verdict == "hang"
        assert said(hung) is None


def test_ranks_that_are_gone_meanwhile_are_passed_over(tmp_path: Path) -> None:
    with running(silent_log(tmp_path)) as gone:
        pass
    with running(silent_log(tmp_path)) as pid:
        text = said(at_work(gone, pid))
    assert text is not None
    assert text.startswith("rank 1 works (0.98 of a core)")
