"""Whose code it is, what evidence holds, and what phases are called."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

import lightning_hangcheck
from lightning_hangcheck.model import verdict
from lightning_hangcheck.model.code_owner import EXAMPLE, PARTS, Owner, is_users, owner_of
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.slugs import (
    creates_logger,
    phase_after_checkpoint,
    phase_of_function,
    phase_of_name,
)

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Phase

SITE = "/venv/lib/python3.11/site-packages"

PACKAGE = Path(lightning_hangcheck.__file__).parent

FILES = sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))

OURS = [file for file in FILES if not file.startswith(EXAMPLE)]

ROOTS = (
    f"{SITE}/lightning_hangcheck",
    "/home/ada/lightning-hangcheck/lightning_hangcheck",
    "/home/ada/lightning_hangcheck/lightning_hangcheck",
    "/jobs/tools.zip/lightning_hangcheck",
    "lightning_hangcheck",
)


def test_the_parts_of_this_package_are_what_lies_in_its_folder() -> None:
    present = {entry.name for entry in PACKAGE.iterdir() if entry.is_dir() or entry.suffix == ".py"}
    assert present - {"__pycache__", EXAMPLE} == PARTS


@pytest.mark.parametrize("root", ROOTS)
def test_every_file_of_this_package_is_ours_wherever_it_lies(root: str) -> None:
    assert {owner_of(f"{root}/{file}") for file in OURS} == {Owner("ours")}


@pytest.mark.parametrize(
    "file",
    [
        "/home/ada/demo/train.py",
        "train.py",
        "./train.py",
        "/home/ada/lightning_hangcheck/train.py",
        "/home/ada/lightning_hangcheck/scripts/train_reference.py",
        f"{SITE}/lightning_hangcheck/reference_script/train_reference.py",
        f"{SITE}/lightning_hangcheck/reference_script/reference/training.py",
        "/home/ada/lightning-hangcheck/tests/programs/sleeping.py",
        "/home/ada/my_lightning_hangcheck/hooks/meeting.py",
        "/home/ada/lightning_hangcheck_demo/model/net.py",
        "/home/ada/venv/src/my-package/my_package/net.py",
        "/home/ada/site-packages-of-mine/net.py",
        "/jobs/app.pex/my_package/net.py",
        "/home/ada/lib/python3.11/train.py",
        "/scratch/ipykernel_77/123.py",
        "<ipython-input-3-abc>",
        "<python-input-0>",
        "<stdin>",
    ],
)
def test_what_no_package_holds_is_the_users(file: str) -> None:
    assert owner_of(file) == Owner("user")
    assert is_users(file)


@pytest.mark.parametrize(
    ("file", "package"),
    [
        (f"{SITE}/torch/nn/modules/module.py", "torch"),
        (f"{SITE}/lightning/pytorch/loops/fit_loop.py", "lightning"),
        (f"{SITE}/typing_extensions.py", "typing_extensions"),
        (f"{SITE}/tool-1.0-py3.11.egg/tool/run.py", "tool"),
        ("/jobs/tool-1.0-py3-none-any.whl/tool/run.py", "tool"),
        ("/scratch/torchinductor_ada/ab/cabcab.py", "torch"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        ("/home/ada/pytorch/torch/nn/modules/module.py", "torch"),
        ("/home/ada/pytorch-lightning/src/lightning/fabric/fabric.py", "lightning"),
        ("/home/ada/.vscode/extensions/debugpy-1/bundled/libs/debugpy/server/api.py", "debugpy"),
    ],
)
def test_an_installed_package_and_a_frameworks_sources_are_a_frameworks(
    file: str, package: str
) -> None:
    assert owner_of(file) == Owner("framework", package)


@pytest.mark.parametrize(
    "file",
    [
        "/opt/conda/lib/python3.12/selectors.py",
        "/usr/lib64/python3.9/threading.py",
        "/home/ada/.pyenv/versions/3.13.0t/lib/python3.13t/threading.py",
        "/opt/lib/pypy3.10/threading.py",
        "/usr/lib/python311.zip/threading.py",
        "<frozen runpy>",
        "<string>",
        "<attrs generated init Model>",
    ],
)
def test_the_interpreters_library_and_what_it_generates_is_standard(file: str) -> None:
    assert owner_of(file) == Owner("standard")


@pytest.mark.parametrize(
    "frame",
    [
        Frame("training_step", "/home/me/train.py", 88),
        Frame("<module>", "<ipython-input-3-ab12>", 1),
        Frame("Outer.step (inner)", "/data/a:b.py", 7),
    ],
)
def test_a_frame_that_was_written_is_read_again(frame: Frame) -> None:
    assert Frame.parse(str(frame)) == frame


@pytest.mark.parametrize("text", ["", "main", "main (train.py)", "main (train.py:x)", "(a:1)"])
def test_what_is_no_frame_is_none(text: str) -> None:
    assert Frame.parse(text) is None


def test_a_gap_and_its_remedy_are_one_sentence_in_the_verdict_only() -> None:
    gap = Gap("stack of pid 7", 3, "it belongs to user id 7", "stack", "run as that user")
    told = {"what": "stack of pid 7", "rank": 3, "why": "it belongs to user id 7; run as that user"}
    assert msgspec.to_builtins(verdict.Gap.of(gap)) == told
    assert msgspec.convert(msgspec.to_builtins(gap), Gap) == gap


def test_a_gap_that_was_saved_before_gaps_had_a_kind_reads_the_same() -> None:
    saved = b'{"what": "stack of pid 7", "rank": 3, "why": "it is protected; run as root"}'
    assert msgspec.json.decode(saved, type=Gap).reason == "it is protected; run as root"


AT_ONCE = """
import sys, threading

sys.setswitchinterval(1e-6)
from lightning_hangcheck.nodes.encoding import pack, read_judgement, read_message
from lightning_hangcheck.nodes.message import VERSION, Judgement, Message

message, judgement = Message(version=VERSION, node=0, stamp=1), Judgement(version=VERSION, stamp=1)
told = {read_message: pack(message), read_judgement: pack(judgement)}
gate = threading.Barrier(4)


def read(work):
    gate.wait()
    work(told[work])


threads = [threading.Thread(target=read, args=(work,)) for work in (*told, *told)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_facts_that_are_first_read_by_several_threads_at_once_are_read() -> None:
    """msgspec alone reads a null pointer then, and a sidecar that hears other nodes was gone."""
    ended = subprocess.run([sys.executable, "-c", AT_ONCE], check=False, timeout=120)
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("WandbLogger constructor", "logger_init"),
        ("wandb.init", "logger_init"),
        ("create the experiment logger", "logger_init"),
        ("wandb.finish", "teardown"),
        ("Datalogger sync", None),
        ("create_wandb_artifact", None),
        ("init wandb on rank 0", "logger_init"),
        ("dataset logger model weights", None),
        ("create the dataset, then tell the logger", None),
        ("wait for the lock /data/model/init_wandb.lock", None),
        ("Trainer constructor", "trainer_init"),
        ("Trainer.fit", None),
        ("Trainer.evaluate", "validation"),
        ("Trainer.save_checkpoint", "checkpoint_save"),
        ("torch.save of a checkpoint", "checkpoint_save"),
        ("torch.save", None),
        ("save_checkpoint", "checkpoint_save"),
        ("ModelCheckpoint callback", None),
        ("torch.load of a checkpoint", "model_load"),
        ("load tokenizer", "tokenizer"),
        ("tokenizer from_pretrained (AutoTokenizer)", "tokenizer"),
        ("model from_pretrained (GPT2LMHeadModel)", "model_load"),
        ("load_weights", "model_load"),
        ("remodel the kitchen", None),
        ("dist.init_process_group", "rendezvous"),
        ("destroy_process_group", "teardown"),
        ("datasets.load_dataset", "dataloading"),
        ("DataLoader constructor", "dataloading"),
        ("generate (GPT2LMHeadModel)", "generate"),
        ("generate_noise", None),
        ("generate_samples", "generate"),
        ("re_evaluate_model", "validation"),
        ("interpreter shutdown", "teardown"),
        ("train one epoch", None),
        ("backward_pass", "backward"),
        ("__getitem__", "dataloading"),
        ("validate_config", None),
        ("validate_batch", "validation"),
        ("get_model", "model_load"),
        ("load_backbone", "model_load"),
        ("prepare_data", "dataloading"),
        ("data_parallel_rank", None),
        ("collect_rollouts", "generate"),
        ("persist_checkpoint", "checkpoint_save"),
        ("setup_distributed", "rendezvous"),
        ("build_distributed_sampler", None),
        ("on_train_end", "teardown"),
        ("on_train_epoch_end", None),
        ("", None),
    ],
)
def test_a_name_means_a_phase_by_whole_words(name: str, phase: Phase | None) -> None:
    assert phase_of_name(name) == phase


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("AsyncCheckpointer.save", "checkpoint_save"),
        ("make.<locals>.CheckpointManager.save", "checkpoint_save"),
        ("Weights.load", "model_load"),
        ("Checkpointer.wait", None),
        ("ModelServer.get", None),
        ("Cache.save", None),
        ("save", None),
        ("CheckpointTests.evaluate", "validation"),
    ],
)
def test_a_method_that_saves_or_loads_says_by_its_class_what(
    name: str, phase: Phase | None
) -> None:
    assert phase_of_function(name) == phase
    assert creates_logger(name) == (phase == "logger_init")


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Script started", "startup", "startup"),
        ("Tokenizer loaded", "startup", "startup"),
        ("Tokenizer loaded", "tokenizer", "startup"),
        ("Model created", "tokenizer", "tokenizer"),
        ("Model created", "model_load", "startup"),
        ("Trainer ready", "trainer_init", "startup"),
        ("WandbLogger ready (prime suspect)", "logger_init", "startup"),
        ("Datalogger ready", "logger_init", "logger_init"),
        ("Training finished", "validation", "teardown"),
        ("Script done", "startup", "teardown"),
    ],
)
def test_a_checkpoint_ends_the_phase_that_it_names(name: str, before: Phase, after: Phase) -> None:
    assert phase_after_checkpoint(name, before) == after
