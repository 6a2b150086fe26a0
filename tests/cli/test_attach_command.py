"""`hangcheck attach` on real processes that never heard of it, and on what it cannot attach to."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import has_slept, is_alive, run_python, until

from lightning_hangcheck.cli.main import invoke

if TYPE_CHECKING:
    from processes import RunningProgram, StartProgram

NOBODY = 65534


class StartedRanks:
    """Ranks that a program of ours started, all announced."""

    def __init__(self, launcher: RunningProgram, count: int) -> None:
        words = [launcher.first_words, *(launcher.announcement() for _ in range(count - 1))]
        self.pids = {int(rank): int(pid) for rank, pid in map(str.split, words)}
        self.launcher = launcher.pid


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Idle ranks are called hung after a second, so that no test must wait for half a minute."""
    monkeypatch.setenv("HANGCHECK_IDLE_AFTER", "1")
    monkeypatch.chdir(tmp_path)


def attach(*arguments: str) -> tuple[int, Path]:
    """Attach, with a run folder of our own."""
    return invoke(["attach", "--run-dir", "run", *arguments]), Path("run")


def verdict_in(folder: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((folder / "verdict.json").read_text())
    return read


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line with which a visit is refused, leaving no run folder behind."""
    code, folder = attach(*arguments)
    said = capsys.readouterr()
    assert code == 4
    assert said.out == ""
    assert said.err.startswith("hangcheck: ")
    assert said.err.count("\n") == 1
    assert not folder.exists()
    return said.err


def test_the_culprit_among_eight_ranks_in_under_three_seconds(
    program: StartProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the three seconds, two are for waiting: the rest is what this machine must work."""
    ranks = StartedRanks(program("starting_ranks.py", "stuck", "8"), 8)
    until(lambda: has_slept(ranks.pids[1], 1.0), "rank 1 to stand still")
    before = _processor_time_s()
    code, folder = attach("--pid", str(ranks.launcher))
    worked_s = _processor_time_s() - before
    verdict = verdict_in(folder)
    assert code == 3
    assert capsys.readouterr().out.startswith("HANG  rank 1 ")
    assert (verdict["verdict"], verdict["culprits"]) == ("hang", [1])
    assert verdict["victims"] == [0, 2, 3, 4, 5, 6, 7]
    assert "waits_for_feed" in str(verdict["summary"])
    assert worked_s < 0.9
    case = json.loads((folder / "evidence" / "1" / "case.json").read_text())
    looks = [len(process["samples"]) for rank in case["ranks"] for process in rank["processes"]]
    assert set(looks) == {2}, "where every rank has slept for long, the kernel knows the rest"
    assert all(is_alive(psutil.Process(pid)) for pid in ranks.pids.values())


def _processor_time_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def test_the_run_folder_has_everything(program: StartProgram) -> None:
    ranks = StartedRanks(program("starting_ranks.py", "stuck", "2"), 2)
    _, folder = attach("--pid", str(ranks.pids[0]))
    record = json.loads((folder / "run.json").read_text())
    files = ("verdict.json", "verdicts/1.json", "evidence/1/case.json", "evidence/1/stacks.txt")
    assert all((folder / name).is_file() for name in files)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [(rank["rank"], rank["pid"]) for rank in record["ranks"]] == sorted(ranks.pids.items())
    assert record["world_size"] == 2
    assert not any(b"s3cr3t" in path.read_bytes() for path in folder.rglob("*.*") if path.is_file())


@pytest.mark.parametrize("mode", ["advancing", "saving"])
def test_a_job_that_advances_is_healthy(
    mode: str, program: StartProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    """Saving: rank 1 writes slowly while rank 0 waits for it."""
    ranks = StartedRanks(program("starting_ranks.py", mode, "2"), 2)
    code, folder = attach("--pid", str(ranks.pids[0]))
    assert (code, verdict_in(folder)["verdict"]) == (0, "healthy"), capsys.readouterr().out


def test_a_stopped_rank_is_proven_at_once_and_stays_stopped(program: StartProgram) -> None:
    ranks = StartedRanks(program("starting_ranks.py", "stopped", "2"), 2)
    stopped = psutil.Process(ranks.pids[1])
    until(lambda: stopped.status() == psutil.STATUS_STOPPED, "rank 1 to stop")
    code, folder = attach("--pid", str(ranks.pids[0]))
    verdict = verdict_in(folder)
    assert (code, verdict["cause"], verdict["culprits"]) == (3, "process_stopped", [1])
    assert stopped.status() == psutil.STATUS_STOPPED


def test_processes_without_variables_are_ranks_in_the_order_given(program: StartProgram) -> None:
    first, second = (program("starting_ranks.py", "alone", "1") for _ in range(2))
    _, folder = attach("--pid", str(second.pid), "--pid", str(first.pid))
    case = json.loads((folder / "evidence" / "1" / "case.json").read_text())
    assert [view["pid"] for view in case["ranks"]] == [second.pid, first.pid]


def test_several_jobs_are_listed_and_asked_about(
    program: StartProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = [StartedRanks(program("starting_ranks.py", "stuck", "2"), 2) for _ in range(2)]
    code, folder = attach()
    *listed, question = capsys.readouterr().err.splitlines()
    assert code == 2
    assert not folder.exists()
    assert "name one: hangcheck attach --pid " in question
    for job in jobs:
        (line,) = [line for line in listed if line.startswith(f"pid {job.pids[0]} ")]
        assert "world size 2  " in line
        assert "--api_key=[redacted]" in line


def test_a_process_that_is_gone_or_not_python(capsys: pytest.CaptureFixture[str]) -> None:
    other = subprocess.Popen(["sleep", "1000"])
    try:
        said = refused(capsys, "--pid", str(other.pid))
    finally:
        other.kill()
        other.wait(120)
    assert f"process {other.pid} (sleep) is not Python" in said
    said = refused(capsys, "--pid", str(other.pid))
    assert f"there is no process {other.pid} here" in said
    assert "pid namespace" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user(program: StartProgram) -> None:
    """What a visit imports late is imported before: the other user may not read our interpreter."""
    ranks = StartedRanks(program("starting_ranks.py", "stuck", "2"), 2)
    visit = (
        "import importlib, os, pickle, pkgutil, sys, lightning_hangcheck.cli.main as m;"
        "[importlib.import_module(f'lightning_hangcheck.{room}.{file.name}')"
        " for room in ('attach', 'observe') for file in pkgutil.iter_modules("
        "importlib.import_module(f'lightning_hangcheck.{room}').__path__)];"
        f"os.setgroups([]); os.setresgid(*[{NOBODY}] * 3); os.setresuid(*[{NOBODY}] * 3);"
        "sys.exit(m.invoke(['attach', '--pid', sys.argv[1]]))"
    )
    visited = run_python("-c", visit, ranks.pids[0])
    assert visited.returncode == 4, visited.stderr
    assert f"it belongs to user id 0, we are user id {NOBODY}; run as that user" in visited.stderr


def test_without_py_spy_there_is_no_verdict_but_a_remedy(
    program: StartProgram, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that cannot be seen is not called healthy."""
    ranks = StartedRanks(program("starting_ranks.py", "stuck", "2"), 2)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    said = refused(capsys, "--pid", str(ranks.pids[0]))
    assert "no stack of the job can be read: py-spy is not installed" in said
    assert said.rstrip().endswith("pip install py-spy")


def test_a_run_folder_that_cannot_be_written_costs_no_verdict(
    program: StartProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = StartedRanks(program("starting_ranks.py", "stuck", "2"), 2)
    (tmp_path / "file").write_text("")
    code = invoke(["attach", "--run-dir", "file/run", "--pid", str(ranks.pids[0])])
    assert code == 3
    assert capsys.readouterr().out.startswith("HANG  rank 1 ")
