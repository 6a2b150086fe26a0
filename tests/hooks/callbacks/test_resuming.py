"""What is said of a checkpoint that training goes on from, and what of it is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lightning_hangcheck.hooks.callbacks import of_huggingface, of_lightning

if TYPE_CHECKING:
    from pathlib import Path

STATE = '{"global_step": 40, "epoch": 1.5, "log_history": [{"loss": 1.0}]}'
EVERYTHING = ("model.safetensors", "optimizer.pt", "scheduler.pt")


def written(folder: Path, *names: str, state: str = STATE) -> str:
    for name in names:
        (folder / name).touch()
    (folder / "trainer_state.json").write_text(state)
    return str(folder)


def test_a_folder_of_hugging_face_is_told_with_what_it_lacks(tmp_path: Path) -> None:
    found = of_huggingface(written(tmp_path, "model.safetensors"))
    assert (found.path, found.step, found.seen) == (str(tmp_path), 40, "epoch 1.5")
    assert found.lacks == ("optimizer state", "scheduler")
    lacks = "; it holds no optimizer state and no scheduler: what it lacks starts anew"
    assert str(found).endswith(lacks)
    whole = of_huggingface(written(tmp_path, *EVERYTHING))
    assert whole.lacks == ()
    assert "holds no" not in str(whole)


@pytest.mark.parametrize("state", ["", "[]", '{"global_step": "x"}'])
def test_a_state_that_cannot_be_read_makes_nothing_up(tmp_path: Path, state: str) -> None:
    found = of_huggingface(written(tmp_path, state=state))
    assert (found.step, found.lacks) == (None, ())


def test_a_secret_in_an_address_is_hidden() -> None:
    assert "hunter2" not in str(of_lightning("https://ada:hunter2@models.org/last.ckpt", {}))
