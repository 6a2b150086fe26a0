"""`hangcheck run` says of which ranks it sees nothing or little, and what to write instead."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import end, until
from watch.launched import start_run, verdict_of

from lightning_hangcheck import log
from lightning_hangcheck.look.proc import command_line
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.watch.workers import SRUN_SAID_AFTER_NS, srun_in_front

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LATER_NS = SRUN_SAID_AFTER_NS + 10 * NANOSECONDS


@pytest.fixture
def srun(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[int]:
    """A process called srun, with more words if a test gives some."""
    shell = shutil.which("sh")
    assert shell is not None
    (tmp_path / "srun").symlink_to(shell)
    words = getattr(request, "param", ())
    process = subprocess.Popen(
        [tmp_path / "srun", "-c", "read line", *words], stdin=subprocess.PIPE
    )
    try:
        until(lambda: "read line" in str(command_line(process.pid)), "it to be srun")
        yield process.pid
    finally:
        end(process)


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "_said", set())


def test_it_is_said_with_the_way_out(srun: int, capfd: pytest.CaptureFixture[str]) -> None:
    now_ns = time.monotonic_ns()
    assert not srun_in_front(os.getpid(), now_ns), "its ranks may still start"
    assert capfd.readouterr().err == ""
    assert srun_in_front(os.getpid(), now_ns + LATER_NS)
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert f"no rank of srun (pid {srun}) is seen on this machine" in said
    assert said.endswith("srun hangcheck run -- python train.py\n")


@pytest.mark.parametrize("srun", [("/opt/bin/hangcheck", "run")], indirect=True)
@pytest.mark.usefixtures("srun")
def test_an_srun_that_starts_hangcheck_is_as_it_should_be() -> None:
    assert not srun_in_front(os.getpid(), time.monotonic_ns() + LATER_NS)


@pytest.mark.real
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-uI", "-X", "dev"], "-I"),
        pytest.param(["-W", "ignore", "-E"], "-E", marks=WHEN_ASKED_FOR),
        pytest.param(["-u"], "", marks=WHEN_ASKED_FOR),
    ],
)
def test_a_python_that_runs_no_start_up_file_is_watched_from_outside_and_that_is_said(
    options: list[str], said: str, tmp_path: Path
) -> None:
    program = "import time; time.sleep(1000)"
    process = start_run(
        tmp_path,
        [sys.executable, *options, "-c", program, "-S"],
        RANK="0",
        WORLD_SIZE="1",
        HANGCHECK_SUSPECT_OUTSIDE_AFTER="4",
    )
    errors = ""
    try:
        assert process.stderr is not None
        while "SUSPECT" not in errors:
            errors += process.stderr.readline()
        until((tmp_path / "run/verdict.json").exists, "its verdict on the disk")
    finally:
        end(process)
    sentence = f"rank 0 is watched from outside only: its Python was started with {said}"
    assert errors.count(sentence) == bool(said), errors
    gaps = [gap.what for gap in verdict_of(tmp_path / "run").gaps]
    assert gaps == ["steps and sections"] * bool(said)
