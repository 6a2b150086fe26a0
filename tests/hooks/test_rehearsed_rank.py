"""A rank that takes part in a rehearsal: on the CPU, and with few batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS

from lightning_hangcheck.model.rehearsal import VARIABLE, Part

if TYPE_CHECKING:
    from pathlib import Path

START = "from lightning_hangcheck.hooks.rehearsal import begin; begin(); "
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"


def _run(folder: Path, part: str, program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-c",
            START + RUN,
            str(PROGRAMS / "rehearse" / program),
            f"{folder}/store",
        ],
        env={**os.environ, VARIABLE: part, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@WHEN_ASKED_FOR
@pytest.mark.real
def test_what_shall_be_on_a_gpu_stays_on_the_cpu(tmp_path: Path) -> None:
    part = Part(scene="as-it-is", folder=str(tmp_path), ranks=1, batches=4, names_cuda=True)
    ran = _run(tmp_path, msgspec.json.encode(part).decode(), "on_a_gpu.py")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == {
        "devices": ["cpu"],
        "backend": "gloo",
        "length": 4,
        "passes": [4, 4, 1],
    }
    notes = "".join(path.read_text() for path in tmp_path.glob("*.jsonl"))
    assert "gloo in place of nccl" in notes
    assert "SyncBatchNorm is BatchNorm" in notes
