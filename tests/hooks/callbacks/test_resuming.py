"""What is said of a checkpoint that training goes on from, and what of it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import TrainerState

from lightning_hangcheck.hooks.callbacks import of_huggingface, of_lightning

if TYPE_CHECKING:
    from pathlib import Path

STATE = TrainerState(global_step=40, epoch=1.5)


def test_a_folder_of_hugging_face_is_told_with_what_it_lacks(tmp_path: Path) -> None:
    for name in ("model.safetensors", "trainer_state.json"):
        (tmp_path / name).touch()
    found = of_huggingface(str(tmp_path), STATE)
    assert (found.path, found.step, found.seen) == (str(tmp_path), 40, "epoch 1.5")
    assert found.lacks == ("optimizer state", "scheduler")
    lacks = "; it holds no optimizer state and no scheduler: what it lacks starts anew"
    assert str(found).endswith(lacks)
    for name in ("optimizer.pt", "scheduler.pt"):
        (tmp_path / name).touch()
    whole = of_huggingface(str(tmp_path), STATE)
    assert whole.lacks == ()
    assert "holds no" not in str(whole)


def test_a_folder_that_is_gone_makes_nothing_up(tmp_path: Path) -> None:
    found = of_huggingface(str(tmp_path / "gone"), STATE)
    assert (found.age_s, found.lacks) == (None, ())


def test_a_secret_in_an_address_is_hidden() -> None:
    assert "hunter2" not in str(of_lightning("https://ada:hunter2@models.org/last.ckpt", {}))
