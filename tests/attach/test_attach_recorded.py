"""Visits to jobs that record, that train, and that make it hard: ranks that die, containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from processes import PROGRAMS, RunningProgram, StartProgram, ending, is_alive, until
from psutil import Process
from recorded_run import AT
from report.constructed import verdict
from watch.launched import record_of, start_run, verdict_of

from lightning_hangcheck.attach.job_search import FoundJob, find_jobs, look_around
from lightning_hangcheck.attach.recorded_session import (
    beats_of,
    find_session,
    hang_stands,
    history,
    watch_over,
)
from lightning_hangcheck.attach.visit import look
from lightning_hangcheck.cli.main import invoke
from lightning_hangcheck.judge import judge
from lightning_hangcheck.look.proc import born_ns, slept_s
from lightning_hangcheck.look.stacks import find_py_spy
from lightning_hangcheck.model.case import Case, Limits, RankView, RunFacts
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes
from lightning_hangcheck.session.session import sessions_folder
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict


def test_a_session_that_no_environment_names_is_found_by_the_page_in_it(
    program: StartProgram, tmp_path: Path
) -> None:
    """A page that fell silent before the process started is of an earlier one with that id.

    Containers that share this memory use the same ids.
    """
    running = program("recording_alone.py", HANGCHECK_RUN_DIR=str(tmp_path / "run"))
    elsewhere = sessions_folder() / f"of-a-container-{running.pid}"
    (elsewhere / "pages").mkdir(parents=True)
    (elsewhere / "pages" / f"{running.pid}.page").touch()
    (elsewhere / "namespace").write_text("pid:[1]")
    session, _ = find_session([running.pid])
    shutil.rmtree(elsewhere)
    try:
        assert str(session.path) == running.first_words
        assert watch_over(session) is None
        beat = beats_of(session, {running.pid: born_ns(running.pid)})[running.pid]
        assert beat.checkpoint.name == "Model created"
        assert beats_of(session, {running.pid: time.monotonic_ns() + NANOSECONDS}) == {}
    finally:
        session.remove()


def test_a_session_that_is_gone_is_a_gap_and_costs_nothing_else(
    program: StartProgram, tmp_path: Path
) -> None:
    running = program("sleeping.py", HANGCHECK_SESSION=str(tmp_path / "gone"))
    session, (gap,) = find_session([running.pid])
    assert session is None
    assert f"session {tmp_path / 'gone'} cannot be read" in gap.reason
    assert find_session([program("sleeping.py").pid]) == (None, ())


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same patience for the watcher and for us, and no test that waits for half a minute."""
    for name, value in {"HANGCHECK_IDLE_AFTER": "7", "HANGCHECK_PROVEN_AFTER": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


def watched(folder: Path, mode: str) -> subprocess.Popen[str]:
    """Two ranks of starting_ranks.py below `hangcheck run`; what they announce is thrown away."""
    command = [sys.executable, str(PROGRAMS / "starting_ranks.py"), mode, "2"]
    return start_run(folder, command, HANGCHECK_TEST_ANNOUNCE="2")


def newest_is(folder: Path, *kinds: str) -> bool:
    """Whether the watcher's newest verdict is one of these."""
    return (folder / "verdict.json").is_file() and verdict_of(folder).verdict in kinds


def pids(folder: Path) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in record_of(folder).ranks}


@pytest.mark.real
def test_a_watched_hang_is_a_hang_to_each_visit_in_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never beats, and no rank sleeps for longer than until the watcher's next look."""
    job, run = watched(tmp_path, "fed"), tmp_path / "run"
    with ending(job):
        until(lambda: newest_is(run, "hang"), "the watcher to tell the hang")
        pid = str(pids(run)[0])
        codes = [invoke(["attach", "--pid", pid, "--run-dir", f"visit{n}"]) for n in range(3)]
        told_at = verdict_of(run).detected_at
    said = capsys.readouterr()
    assert codes == [3, 3, 3], said.out
    for number in range(3):
        verdict = verdict_of(tmp_path / f"visit{number}")
        assert (verdict.verdict, verdict.culprits) == ("hang", (1,))
        assert verdict.stalled_for_s >= 7.0
    assert said.err.startswith(f"hangcheck: this job is watched, see {run}: HANG rank 1 ")
    assert f"reported at {told_at}" in said.err


WRITTEN_NS = 1_000 * NANOSECONDS
RANK = FoundRank(rank=1, pid=17, started_ticks=99)
NOTE = RankNote(
    rank=1, pid=17, started_ticks=99, silent_for_s=60.0, idle_for_s=50.0, circling_for_s=70.0
)
HANG = verdict("hang", stalled_for_s=31.0, culprits=(1,))
TOLD_NS = WRITTEN_NS - 30 * NANOSECONDS
NOTES = WatchNotes(written_ns=WRITTEN_NS, ranks=(NOTE,), newest=HANG, published_ns=TOLD_NS)


def after(seconds: float) -> int:
    return WRITTEN_NS + int(seconds * NANOSECONDS)


def case(silent_for_s: float, seconds_later: float) -> Case:
    return Case(
        run=RunFacts(run_id="r", command="", started_at=AT),
        taken_at=AT,
        taken_ns=after(seconds_later),
        ranks=(RankView(rank=1, pid=17, silent_for_s=silent_for_s),),
    )


def test_old_notes_count_for_a_rank_that_has_slept_since_and_a_gap_says_that_they_are_old() -> None:
    known, (gap,) = history(NOTES, [RANK], {17: 100.0}, after(90.0))
    assert known[1].silent_for_s == 150.0
    assert history(NOTES, [RANK], {17: 80.0}, after(90.0))[0] == {}
    assert history(NOTES, [RANK], {}, after(90.0))[0] == {}
    assert "90 s old" in gap.why
    earlier = FoundRank(rank=1, pid=17, started_ticks=100)
    assert history(NOTES, [earlier], {17: 100.0}, after(1.0))[0] == {}


def test_a_hang_that_was_told_stands_until_it_is_withdrawn_or_somebody_advances() -> None:
    assert hang_stands(NOTES, case(70.0, 1.0))
    assert not hang_stands(NOTES, case(0.5, 1.0))
    for kind in ("recovered", "suspect", "finished"):
        assert not hang_stands(replace(NOTES, newest=replace(HANG, verdict=kind)), case(70.0, 1.0))
    assert not hang_stands(replace(NOTES, newest=None), case(70.0, 1.0))
    assert hang_stands(replace(NOTES, ranks=()), case(70.0, 1.0)), "the culprit is gone"
    assert not hang_stands(NOTES, case(700.0, 600.0)), "its watcher has stopped since"
    # the watcher waits before it tells that; the looks of the visit alone take two seconds
    moved = replace(NOTE, silent_for_s=0.5, idle_for_s=0.5)
    assert not hang_stands(replace(NOTES, ranks=(moved,)), case(2.1, 0.3))


# Visits to training, and to jobs that make it hard: ranks that die, containers.

LIMITS = Limits(idle_after=1.0)
IN_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def stuck_job(launcher: RunningProgram, ranks: int) -> FoundJob:
    """The ranks of starting_ranks.py, once rank 1 stands still."""
    for _ in range(ranks - 1):
        launcher.announcement()
    job = find_jobs(look_around(), [launcher.pid])[0]
    until(lambda: _stands_still(job.ranks[1].pid), "rank 1 to stand still")
    return job


def visit(job: FoundJob, limits: Limits = LIMITS) -> tuple[Case, Verdict]:
    case, _ = look(job, limits, "visit")
    return case, judge(case)


def _stands_still(pid: int) -> bool:
    slept = slept_s(pid)
    return slept is None or slept >= 1.0


def meddling(pid: int, deed: str) -> str:
    """A py-spy that does something first where it is asked about one process."""
    case = f'case "$* " in *"--pid {pid} "*) {deed} ;; esac'
    return f'#!/bin/sh\n{case}\nexec {find_py_spy()} "$@"\n'


def test_a_visit_ends_in_time_where_processes_do_not_answer(
    program: StartProgram, as_py_spy: Callable[[str], None]
) -> None:
    """All looks are taken all the same: what answers is seen as often as ever."""
    job = stuck_job(program("starting_ranks.py", "stuck", "2"), 2)
    as_py_spy(meddling(job.ranks[1].pid, "exec sleep 1000"))
    case, _ = look(job, LIMITS, "visit", time_limit_s=1.5)
    looks = [len(view.processes[0].samples) for view in case.ranks]
    assert looks in ([3, 3], [4, 4]), "a glance comes first where they slept for long already"
    assert any("gave no answer within 0." in gap.why for gap in case.gaps)


def test_a_rank_that_dies_in_the_middle_of_its_dump_is_the_culprit(
    program: StartProgram, as_py_spy: Callable[[str], None]
) -> None:
    job = stuck_job(program("starting_ranks.py", "stuck", "3"), 3)
    as_py_spy(meddling(job.ranks[1].pid, f"kill -9 {job.ranks[1].pid}"))
    _, verdict = visit(job)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("dead", (1,), (0, 2))


def _namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*IN_NAMESPACE, "true"], capture_output=True, timeout=120, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not _namespaces_work(), reason="no pid namespace can be made here")
def test_a_job_in_a_pid_namespace_is_seen_by_its_ids_on_this_side(program: StartProgram) -> None:
    """As of a container, from its host."""
    launcher = program("in_pid_namespace.py", "starting_ranks.py", "stuck", "2")
    job = stuck_job(launcher, 2)
    case, verdict = visit(job)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("hang", (1,), (0,))
    stack = case.ranks[1].processes[0].samples[-1].stack
    assert stack.threads[0].tid == job.ranks[1].pid


IDLE_AFTER_S = 3.0


@contextmanager
def training(mode: str, folder: Path) -> Iterator[FoundJob]:
    """Train on two ranks until the mode shows."""
    shown = folder / "shown"
    program = str(PROGRAMS / "attached_training.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    process = subprocess.Popen([*torchrun, program, mode, str(shown)], cwd=folder)
    with ending(process):
        until(lambda: shown.exists() or process.poll() is not None, f"{mode} to show")
        yield find_jobs(look_around(), [process.pid])[0]


@pytest.mark.real
def test_a_stuck_job_names_its_culprit_and_line_and_goes_on_undisturbed(tmp_path: Path) -> None:
    """A second visit sees at least the silence that the first one saw."""
    with training("stuck", tmp_path) as job:
        culprit, waiting = job.ranks[1].pid, job.ranks[0].pid
        until(lambda: (slept_s(culprit) or IDLE_AFTER_S) >= IDLE_AFTER_S, "rank 1 to stand still")
        until(lambda: (slept_s(waiting) or IDLE_AFTER_S) >= 1.0, "rank 0 to wait for it")
        limits = Limits(idle_after=IDLE_AFTER_S)
        _, first = visit(job, limits)
        _, second = visit(job, limits)
        assert all(is_alive(Process(pid)) for pid in job.pids)
    assert (first.verdict, first.culprits, first.victims) == ("hang", (1,), (0,))
    assert "waits_for_feed" in first.summary
    assert second.stalled_for_s > first.stalled_for_s
