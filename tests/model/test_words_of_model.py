"""Whose code it is, what evidence holds, and what phases are called."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from processes import run_python

import lightning_hangcheck
from lightning_hangcheck.model.code_owner import EXAMPLE, PARTS, Owner, is_users, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.slugs import Phase
from lightning_hangcheck.model.words import (
    PHASES,
    phase_after_checkpoint,
    phase_of_function,
    phase_of_name,
)

SITE = "/venv/lib/python3.11/site-packages"
PACKAGE = Path(lightning_hangcheck.__file__).parent
FILES = sorted(str(file.relative_to(PACKAGE)) for file in PACKAGE.rglob("*.py"))
OURS = [file for file in FILES if not file.startswith(EXAMPLE)]
ROOTS = (
    f"{SITE}/lightning_hangcheck",
    "/home/ada/lightning-hangcheck/lightning_hangcheck",
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
        "/home/ada/lightning_hangcheck/train.py",
        f"{SITE}/lightning_hangcheck/reference_script/train_reference.py",
        "/home/ada/lightning-hangcheck/tests/programs/sleeping.py",
        "/home/ada/venv/src/my-package/my_package/net.py",
        "/home/ada/lib/python3.11/train.py",
        "/scratch/ipykernel_77/123.py",
        "<ipython-input-3-abc>",
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
        ("/scratch/torchinductor_ada/ab/cabcab.py", "torch"),
        ("/usr/lib/python3/dist-packages/yaml/__init__.py", "yaml"),
        ("/home/ada/pytorch/torch/nn/modules/module.py", "torch"),
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
        "<frozen runpy>",
        "<string>",
    ],
)
def test_the_interpreters_library_and_what_it_generates_is_standard(file: str) -> None:
    assert owner_of(file) == Owner("standard")


def test_a_frame_that_was_written_is_read_again_and_nothing_else() -> None:
    for frame in (Frame("<module>", "<stdin>", 1), Frame("Outer.step (inner)", "/data/a:b.py", 7)):
        assert Frame.parse(str(frame)) == frame
    for text in ("", "main", "main (train.py)", "main (train.py:x)", "(a:1)"):
        assert Frame.parse(text) is None


AT_ONCE = """
import sys, threading

sys.setswitchinterval(1e-6)
from lightning_hangcheck.nodes.encoding import pack, read_message
from lightning_hangcheck.nodes.message import VERSION, Message

sent = pack(Message(version=VERSION, node=0, stamp=1))
gate = threading.Barrier(4)


def read():
    gate.wait()
    read_message(sent)


threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_facts_that_are_first_read_by_several_threads_at_once_are_read() -> None:
    """msgspec alone reads a null pointer then, and a sidecar that hears other nodes was gone."""
    ended = run_python("-c", AT_ONCE)
    assert ended.returncode == 0


PHASES_OF_NAMES: dict[Phase | None, str] = {
    "logger_init": (
        "WandbLogger constructor | wandb.init | create the experiment logger | init wandb on rank 0"
    ),
    "teardown": "wandb.finish | destroy_process_group | interpreter shutdown | on_train_end",
    None: (
        "Datalogger sync | create_wandb_artifact | dataset logger model weights | "
        "create the dataset, then tell the logger | "
        "wait for the lock /data/model/init_wandb.lock | Trainer.fit | torch.save | "
        "ModelCheckpoint callback | remodel the kitchen | generate_noise | train one epoch | "
        "validate_config | data_parallel_rank | build_distributed_sampler | "
        "on_train_epoch_end | "  # no words at all, too
    ),
    "trainer_init": "Trainer constructor",
    "validation": "Trainer.evaluate | re_evaluate_model | validate_batch",
    "checkpoint_save": (
        "Trainer.save_checkpoint | torch.save of a checkpoint | save_checkpoint | "
        "persist_checkpoint"
    ),
    "model_load": (
        "torch.load of a checkpoint | model from_pretrained (GPT2LMHeadModel) | load_weights | "
        "get_model | load_backbone"
    ),
    "tokenizer": "load tokenizer | tokenizer from_pretrained (AutoTokenizer)",
    "rendezvous": "dist.init_process_group | setup_distributed",
    "dataloading": "datasets.load_dataset | DataLoader constructor | __getitem__ | prepare_data",
    "generate": "generate (GPT2LMHeadModel) | generate_samples | collect_rollouts",
    "backward": "backward_pass",
}
"""Names, parted by ``|``."""


def test_a_name_means_a_phase_by_whole_words() -> None:
    for phase, names in PHASES_OF_NAMES.items():
        found = {name: phase_of_name(name) for name in names.split(" | ")}
        assert found == dict.fromkeys(found, phase)
    assert [phase_of_function(name) for name in ("test", "test_lock")] == ["validation", None]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("Script started", "startup", "startup"),
        ("Tokenizer loaded", "tokenizer", "startup"),
        ("Model created", "tokenizer", "tokenizer"),
        ("Model created", "model_load", "startup"),
        ("WandbLogger ready (prime suspect)", "logger_init", "startup"),
        ("Training finished", "validation", "teardown"),
    ],
)
def test_a_checkpoint_ends_the_phase_that_it_names(name: str, before: Phase, after: Phase) -> None:
    assert phase_after_checkpoint(name, before) == after


def test_the_page_numbers_the_phases_of_the_vocabulary() -> None:
    assert get_args(Phase) == PHASES
