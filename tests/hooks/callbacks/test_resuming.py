"""What is said of a checkpoint that training goes on from, and what of it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import TrainerState

from lightning_hangcheck.hooks.callbacks import tell_of_huggingface, tell_of_lightning
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

STATE = TrainerState(global_step=40, epoch=1.5)


def test_a_folder_of_hugging_face_is_told_with_what_it_lacks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("model.safetensors", "trainer_state.json"):
        (tmp_path / name).touch()
    tell_of_huggingface(current(), str(tmp_path), STATE)
    said = capfd.readouterr().err
    assert f"goes on from {tmp_path}: step 40, epoch 1.5, written " in said
    assert said.endswith(
        "; it holds no optimizer state and no scheduler: what it lacks starts anew\n"
    )
    for name in ("optimizer.pt", "scheduler.pt"):
        (tmp_path / name).touch()
    tell_of_huggingface(current(), str(tmp_path), STATE)
    assert "holds no" not in capfd.readouterr().err


def test_a_folder_that_is_gone_makes_nothing_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tell_of_huggingface(current(), str(tmp_path / "gone"), STATE)
    assert capfd.readouterr().err.endswith("gone: step 40, epoch 1.5\n")


def test_a_secret_in_an_address_is_hidden(capfd: pytest.CaptureFixture[str]) -> None:
    tell_of_lightning(current(), "https://ada:hunter2@models.org/last.ckpt", {})
    said = capfd.readouterr().err
    assert "models.org/last.ckpt: nothing is known of it" in said
    assert "hunter2" not in said
