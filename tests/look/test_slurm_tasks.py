"""Which processes are a SLURM job's, by what scontrol prints. Real ones: tests/launch/nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.look.programs import processes_of_job
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "1", "SLURMD_NODENAME": "hcnode1"}
TABLE = """\
PID      JOBID    STEPID   LOCALID GLOBALID
2881     5        0        0       1
2882     5        0        -       -
2984     5        1        0       1
3001     51       0        0       0
-        5        extern   -       -
"""


def scontrol(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program of that name before all others."""
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


def test_those_of_the_jobs_other_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = '[ "$*" = "listpids 5 hcnode1" ] || exit 3'
    scontrol(tmp_path, monkeypatch, f"{check}\ncat <<'END'\n{TABLE}END")
    assert processes_of_job(STEP) == (2881, 2882)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'no steps for job 5' >&2; exit 1", "scontrol: no steps for job 5"),
        ("exit 1", "scontrol: exit code 1"),
    ],
)
def test_what_slurm_does_not_say_is_a_gap(
    script: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol(tmp_path, monkeypatch, script)
    gap = processes_of_job(STEP)
    assert isinstance(gap, Gap)
    assert (gap.what, gap.why) == ("processes of SLURM job 5", why)


def test_a_node_without_slurms_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gap = processes_of_job(STEP)
    assert isinstance(gap, Gap)
    assert gap.why == "there is no scontrol here"
