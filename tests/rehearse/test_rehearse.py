"""Rehearsals: their scenes, what is judged of each, and real ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from long_tests import WHEN_ASKED_FOR, real_when_asked_for
from msgspec.structs import replace
from processes import PATIENCE_S, PROGRAMS, ending, run_python, until

from lightning_hangcheck.hooks.being_watched import REHEARSAL
from lightning_hangcheck.hooks.rehearsal import Note, Part
from lightning_hangcheck.judge import judge
from lightning_hangcheck.rehearse import SCENES, CannotRehearse, Facts, judge_scene, on_cpu_ranks
from lightning_hangcheck.smoke import Outcome, Trial

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.slugs import VerdictKind
    from lightning_hangcheck.smoke import Result

OURS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun --nproc_per_node=8 --nnodes=4 --rdzv-id 7 gone.py --lr 1", "gone.py --lr 1"),
        ("python -m torch.distributed.run --nproc-per-node 8 gone.py", "gone.py"),
        ("torchrun --nproc_per_node=8 -m package.train --lr 1", "-m package.train --lr 1"),
        ("accelerate launch --multi_gpu --num_processes 8 gone.py --lr 1", "gone.py --lr 1"),
        ("torchrun --no_python ./train.sh -m 1", "--no-python ./train.sh -m 1"),
        ("python -u gone.py --lr 1", "gone.py --lr 1"),
        ("python -m package.train --lr 1", "-m package.train --lr 1"),
    ],
)
def test_torchrun_starts_as_many_ranks_as_wanted(command: str, program: str) -> None:
    assert on_cpu_ranks(command.split(), 2)[0] == (*OURS, *program.split())


@pytest.mark.parametrize(
    "text",
    [
        "import lightning as L\n",
        "from pytorch_lightning import Trainer\n",
        "from helper import run\n",
        "import torch.multiprocessing as mp\nmp.spawn(run, nprocs=2)\n",
    ],
)
def test_a_script_that_starts_its_ranks_is_left_to_it(text: str, tmp_path: Path) -> None:
    """Whether it names cuda is told from its files, too."""
    script = tmp_path / "train.py"
    script.write_text(text)
    (tmp_path / "helper.py").write_text("from lightning.pytorch import Trainer\nx = 'cuda:0'")
    command = ("python", str(script), "--devices", "8")
    assert on_cpu_ranks(command, 2) == (command, "helper" in text)


@pytest.mark.parametrize(
    "command", ["srun python train.py", "bash train.sh", "python -c pass", "python", "torchrun"]
)
def test_what_cannot_be_rehearsed_is_said_with_the_way_out(command: str) -> None:
    with pytest.raises(CannotRehearse, match=r"^cannot be rehearsed: .*hangcheck rehearse -- "):
        on_cpu_ranks(command.split(), 2)


def _loader(rank: int, mark: str, *, key: str = "Data", shared: bool = False) -> Note:
    return Note(kind="loader", rank=rank, key=key, mark=mark, shared=shared)


def _missing(name: str, facts: Facts) -> str:
    return next(scene for scene in SCENES if scene.name == name).missing(facts)


@pytest.mark.parametrize(
    ("loaders", "uneven"),
    [
        ([_loader(0, "a"), _loader(1, "b")], ("Data",)),
        ([_loader(0, "a"), _loader(1, "a")], ()),
        ([_loader(0, "of rank 0 alone", key="Own"), _loader(0, "a"), _loader(1, "a")], ()),
        ([_loader(0, "a", shared=True), _loader(1, "b", shared=True)], ()),
        ([_loader(0, "a", key="Data of 3"), _loader(1, "a", key="Data of 4")], ("Data of 4",)),
        ([_loader(1, "b")], ()),
        ([], ()),
    ],
)
def test_a_loader_may_be_uneven_where_ranks_read_different_data_and_nothing_evens_it(
    loaders: list[Note], uneven: tuple[str, ...]
) -> None:
    facts = Facts(loaders, ranks=2)
    assert facts.uneven == uneven
    for name in ("fewer-samples", "no-samples", "smaller-last-batch"):
        assert bool(_missing(name, facts)) != bool(uneven)


@pytest.mark.parametrize(
    ("note", "scene", "why"),
    [
        (Note(kind="step", rank=1), "sigterm", "nothing of the program"),
        (Note(kind="step", rank=1, text="Lightning"), "sigterm", "only Lightning"),
        (Note(kind="step", rank=1, text="program"), "sigterm", ""),
        (Note(kind="workers", rank=0, text="0"), "no-workers", "it has no workers"),
        (Note(kind="workers", rank=0, text="1"), "one-worker", "it has 1 worker"),
        (Note(kind="workers", rank=0, text="2"), "one-worker", ""),
    ],
)
def test_what_a_program_has_already_or_does_not_have_is_skipped(
    note: Note, scene: str, why: str
) -> None:
    missing = _missing(scene, Facts([note], ranks=2))
    assert missing.startswith(why)
    assert bool(missing) == bool(why)
    nothing = Facts([Note(kind="group", rank=0, text="2")], ranks=2)
    assert nothing.world == 2
    assert [scene.name for scene in SCENES if not scene.missing(nothing)] == ["as-it-is"]


CUT_OFF = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"
VERDICT = judge(job(rank(0, IN_BARRIER, silent=400.0), rank(1, IN_LOAD, silent=400.0)))


def _judged(
    result: Result, *notes: Note, folder: str = "gone/run", kind: VerdictKind = "hang"
) -> tuple[str, str]:
    outcome = Outcome(
        trial=Trial(devices=2, workers=None, command=("train.py",)),
        result=result,
        seconds=1.0,
        where="" if result == "passed" else "rank 1 is stuck",
        verdict=replace(VERDICT, verdict=kind, culprits=(1,)),
        run_folder=folder,
    )
    return judge_scene(outcome, notes, ranks=2)


def _raised(number: int, text: str = "ValueError: empty") -> Note:
    return Note(kind="raised", rank=number, text=text, key=f"step (train.py:{number})")


LEFT = Note(kind="left", rank=1)


@pytest.mark.parametrize(
    ("result", "notes", "judged"),
    [
        ("passed", [], ("passed", "")),
        ("hang", [], ("hung", "rank 1 is stuck")),
        ("late", [], ("unclear", "rank 1 is stuck")),
        ("failed", [], ("crashed-on-one", "rank 1 is stuck")),
        ("failed", [_raised(0), _raised(1)], ("crashed-alike", "ValueError: empty step (train.py")),
        ("failed", [_raised(0), _raised(1, "KeyError: 'x'")], ("crashed-on-one", "ValueError")),
        ("failed", [_raised(0)], ("crashed-on-one", "ValueError")),
        # gloo ended it: NCCL would hang
        ("failed", [_raised(0, CUT_OFF), LEFT],
         ("hung", "rank 0 was in step (train.py:0), rank 1 had left")),
        ("failed", [_raised(0, CUT_OFF), _raised(1, CUT_OFF)], ("hung", "rank 0 was in step")),
        ("failed", [_raised(0, CUT_OFF), _raised(1)], ("crashed-on-one", "RuntimeError")),
        ("failed", [_raised(0, CUT_OFF)], ("crashed-on-one", "RuntimeError")),
    ],
)  # fmt: skip
def test_how_a_run_ended(result: Result, notes: list[Note], judged: tuple[str, str]) -> None:
    how, why = _judged(result, *notes)
    assert how == judged[0]
    assert why.startswith(judged[1])


def test_a_rank_that_an_error_ended_is_no_hang() -> None:
    ended = _judged("hang", _raised(1), kind="dead")
    assert ended == ("crashed-on-one", "ValueError: empty")
    assert _judged("hang", LEFT, kind="dead")[0] == "hung"


def test_gloo_that_ends_a_rank_for_other_sizes_is_read_from_its_output(tmp_path: Path) -> None:
    output = tmp_path / "run.log"
    output.write_text("what(): Received data size doesn't match expected size. Is there ...\n")
    output.chmod(0o600)
    assert _judged("failed", folder=f"{tmp_path}/run")[0] == "hung"


# Real rehearsals: programs that hang in a scene are found, robust ones are not accused.

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
    return run_python(*words, folder=folder, environment=ENVIRONMENT, limit_s=1700)


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


@real_when_asked_for
@pytest.mark.timeout(900)
def test_a_program_of_one_process_cannot_be_rehearsed(tmp_path: Path) -> None:
    ran = rehearse(tmp_path, "alone", PYTHON)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "cannot be rehearsed: 2 ranks were wanted, and none met" in ran.stderr


@real_when_asked_for
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
    with ending(process):
        until((tmp_path / "run-as-it-is" / "run.json").is_file, "the first scene to begin")
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


BEGIN = "from lightning_hangcheck.hooks.rehearsal import begin; begin(); "
RUN = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"


@real_when_asked_for
def test_what_shall_be_on_a_gpu_stays_on_the_cpu(tmp_path: Path) -> None:
    part = Part(scene="as-it-is", folder=str(tmp_path), ranks=1, batches=4, names_cuda=True)
    told = {REHEARSAL: msgspec.json.encode(part).decode(), "CUDA_VISIBLE_DEVICES": ""}
    script = str(PROGRAMS / "rehearse" / "on_a_gpu.py")
    words = ("-c", BEGIN + RUN, script, f"{tmp_path}/store")
    ran = run_python(*words, environment={**os.environ, **told}, limit_s=240)
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
