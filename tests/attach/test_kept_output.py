"""What is said of a job that works though its log is silent: of real processes, seen at work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from cases import IN_LOAD, MAIN, job, rank, user
from msgspec.structs import replace
from processes import end

from lightning_hangcheck.attach.kept_output import kept_output
from lightning_hangcheck.judge import judge

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lightning_hangcheck.model.case import Case

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
