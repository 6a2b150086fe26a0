"""Real rehearsals: one that finds a hang, one that accuses nobody, one that cannot be."""

from __future__ import annotations

import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, until
from rehearse.rehearsing import (
    PYTHON,
    TORCHRUN,
    command,
    environment,
    is_found,
    rehearse,
    scenes,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_program_that_skips_a_batch_on_one_rankis_found(tmp_path: Path) -> None:
    ran = rehearse(tmp_path, "ddp_skips_nan", TORCHRUN, "--scene", "non-finite-loss")
    is_found(ran, "non-finite-loss")
    verdict = scenes(ran)["non-finite-loss"]["verdict"]
    assert verdict["verdict"] in ("hang", "dead")
    assert "ddp_skips_nan.py" in verdict["summary"]


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_program_whose_ranks_agree_is_not_accused(tmp_path: Path) -> None:
    options = ("--scene", "non-finite-loss", "--scene", "unusable-batch")
    ran = rehearse(tmp_path, "robust_ddp_agrees", TORCHRUN, *options)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {one["result"] for one in scenes(ran).values()} == {"passed"}


@WHEN_ASKED_FOR
@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_program_of_one_process_cannot_be_rehearsed(tmp_path: Path) -> None:
    ran = rehearse(tmp_path, "alone", PYTHON)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "cannot be rehearsed: 2 ranks were wanted, and none met" in ran.stderr


@WHEN_ASKED_FOR
@pytest.mark.real
def test_nothing_is_left_of_a_rehearsal_that_is_interrupted(tmp_path: Path) -> None:
    """The session's own fixture fails where a process is left behind."""
    script = str(PROGRAMS / "rehearse" / "ddp_skips_nan.py")
    process = subprocess.Popen(
        [*command(("--run-dir", "run")), *TORCHRUN, script],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until((tmp_path / "run-as-it-is" / "run.json").is_file, "the first scene to begin")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    finally:
        end(process)
