"""Real rehearsals: programs that hang in a scene are found, robust ones are not accused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hooks.launching import python
from long_tests import WHEN_ASKED_FOR
from processes import PATIENCE_S, PROGRAMS, end, until

from lightning_hangcheck.hooks.being_watched import REHEARSAL
from lightning_hangcheck.hooks.rehearsal import Part

if TYPE_CHECKING:
    from pathlib import Path

TORCHRUN = ("torchrun", "--nproc_per_node=8")
PYTHON = (sys.executable,)
ACCELERATE = ("accelerate", "launch", "--multi_gpu", "--num_processes", "8")
COMMAND = ("-m", "lightning_hangcheck", "rehearse", "--json")
BESIDE = os.path.dirname(sys.executable)  # noqa: PTH120 - where torchrun is installed
ENVIRONMENT = {**os.environ, "PATH": f"{BESIDE}{os.pathsep}{os.environ['PATH']}"}


def rehearse(
    folder: Path, program: str, launcher: tuple[str, ...], *options: str
) -> subprocess.CompletedProcess[str]:
    name, *arguments = program.split()
    script = str(PROGRAMS / "rehearse" / f"{name}.py")
    words = (*COMMAND, *options, "--", *launcher, script, *arguments)
    return python(*words, folder=folder, environment=ENVIRONMENT, limit_s=1700)


def scenes(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    return {one["scene"]: one for one in json.loads(ran.stdout)["scenes"]}


def is_found(ran: subprocess.CompletedProcess[str], scene: str) -> None:
    assert ran.returncode == 3, ran.stdout + ran.stderr
    played = scenes(ran)
    assert played["as-it-is"]["result"] == "passed"
    assert played[scene]["result"] == "hung"
    assert played[scene]["why"]


@pytest.mark.real
@pytest.mark.timeout(900)
def test_a_program_that_skips_a_batch_on_one_rank_is_found(tmp_path: Path) -> None:
    ran = rehearse(tmp_path, "ddp skips_nan", TORCHRUN, "--scene", "non-finite-loss")
    is_found(ran, "non-finite-loss")
    verdict = scenes(ran)["non-finite-loss"]["verdict"]
    assert verdict["verdict"] in ("hang", "dead")
    assert "ddp.py" in verdict["summary"]


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
    script = str(PROGRAMS / "rehearse" / "ddp.py")
    process = subprocess.Popen(
        [sys.executable, *COMMAND, "--run-dir", "run", "--", *TORCHRUN, script, "skips_nan"],
        cwd=tmp_path,
        env=ENVIRONMENT,
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


BEGIN = "from lightning_hangcheck.hooks.rehearsal import begin; begin(); "
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"


@WHEN_ASKED_FOR
@pytest.mark.real
def test_what_shall_be_on_a_gpu_stays_on_the_cpu(tmp_path: Path) -> None:
    part = Part(scene="as-it-is", folder=str(tmp_path), ranks=1, batches=4, names_cuda=True)
    told = {REHEARSAL: msgspec.json.encode(part).decode(), "CUDA_VISIBLE_DEVICES": ""}
    script = str(PROGRAMS / "rehearse" / "on_a_gpu.py")
    words = ("-c", BEGIN + RUN, script, f"{tmp_path}/store")
    ran = python(*words, environment={**os.environ, **told}, limit_s=240)
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


EVERY = [
    ("ddp uneven_shards", "fewer-samples", TORCHRUN),
    ("ddp validates_where_samples_are", "no-samples", TORCHRUN),
    ("ddp counts_full_batches", "smaller-last-batch", TORCHRUN),
    ("ddp skips_none", "unusable-batch", TORCHRUN),
    ("ddp save_fails_before_barrier", "save-fails", TORCHRUN),
    ("ddp looks_for_saved", "save-slow", TORCHRUN),
    ("ddp own_patience", "early-stop", TORCHRUN),
    ("ddp leaves_on_sigterm", "sigterm", TORCHRUN),
    ("lightning_jobs SkipsNan", "non-finite-loss", PYTHON),
    ("lightning_jobs StopsAlone", "early-stop", PYTHON),
    ("accelerate_jobs uneven_batches", "fewer-samples", ACCELERATE),
    ("transformers_jobs stops_alone", "early-stop", TORCHRUN),
    # robust: whatever the scene, they are not accused
    ("ddp robust_plain", None, TORCHRUN),
    ("ddp robust_join", None, PYTHON),
    ("ddp robust_agrees", None, TORCHRUN),
    ("ddp robust_save", None, TORCHRUN),
    ("ddp robust_stream", None, TORCHRUN),
    ("ddp robust_endless", None, TORCHRUN),
    ("lightning_jobs Robust", None, PYTHON),
    ("accelerate_jobs robust", None, ACCELERATE),
    ("transformers_jobs robust", None, TORCHRUN),
]


@pytest.mark.real
@pytest.mark.timeout(1800)
@WHEN_ASKED_FOR
@pytest.mark.parametrize(("program", "scene", "launcher"), EVERY)
def test_what_hangs_in_a_scene_is_found_and_what_is_robust_is_not_accused(
    program: str, scene: str | None, launcher: tuple[str, ...], tmp_path: Path
) -> None:
    """An hour in all."""
    if scene is not None:
        is_found(rehearse(tmp_path, program, launcher, "--scene", scene), scene)
        return
    ran = rehearse(tmp_path, program, launcher)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not [one for one in scenes(ran).values() if one["result"] == "hung"]
