"""From which checkpoint training goes on: said in one line, and shown as the last one so far."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.checkpoints.contents import PARTS, parts_held
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.recorder.lifecycle import Recorder

LOOK_LIMIT_S = 2.0
"""The file was read a moment ago; only storage that has stalled since takes so long."""
LARGEST_STATE = 64 * 1024 * 1024
"""Bytes of trainer_state.json; 100,000 logged steps of five values each take 15 MB."""


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that training goes on from.

    Attributes:
        path: Absolute, or an address.
        step: Optimizer steps by then; None where it does not tell.
        seen: What of the data was seen by then, in words.
        age_s: Seconds since it was written; None where nobody could tell.
        lacks: Parts that it does not hold, so that they start anew.
    """

    path: str
    step: int | None = None
    seen: str = ""
    age_s: float | None = None
    lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step is not None else ""
        age = f"written {seconds_in_words(self.age_s)} ago" if self.age_s is not None else ""
        told = ", ".join(filter(None, (step, self.seen, age))) or "nothing is known of it"
        without = f"; it holds no {' and no '.join(self.lacks)}: what it lacks starts anew"
        return f"training goes on from {self.path}: {told}" + (without if self.lacks else "")


class _TrainerState(msgspec.Struct):
    """Of Hugging Face's trainer_state.json, what is told."""

    global_step: int | None = None
    epoch: float | None = None


def of_lightning(path: str, checkpoint: Mapping[str, Any]) -> Resumption:
    """Tell what Lightning has loaded.

    Args:
        path: Where from; may be an address.
        checkpoint: As its hooks get it.
    """
    batches = _number(
        checkpoint, "loops", "fit_loop", "epoch_loop.batch_progress", "total", "completed"
    )
    epoch = _number(checkpoint, "epoch")
    seen = (
        f"epoch {epoch}" if epoch is not None else "",
        f"{batches} {'batch' if batches == 1 else 'batches'} seen" if batches else "",
    )
    return Resumption(
        path=_absolute(path),
        step=_number(checkpoint, "global_step"),
        seen=", ".join(filter(None, seen)),
        age_s=_age_s(path),
    )


def of_huggingface(folder: str) -> Resumption:
    """Tell what Hugging Face's Trainer is about to load; what is missing there it passes over.

    Args:
        folder: Of the checkpoint.
    """
    try:
        state, held = within(LOOK_LIMIT_S, lambda: _look_into(Path(folder)))
    except (OSError, NoAnswer, msgspec.MsgspecError):
        return Resumption(path=_absolute(folder))
    return Resumption(
        path=_absolute(folder),
        step=state.global_step,
        seen=f"epoch {state.epoch:g}" if state.epoch is not None else "",
        age_s=_age_s(folder),
        lacks=tuple(part for part in PARTS if part not in held),
    )


def tell(recorder: Recorder, found: Resumption) -> None:
    """Say it, and count it as the last checkpoint until the next save."""
    recorder.page.mark_loaded(time.time_ns(), found.step)
    recorder.say(str(found))
    recorder.note("resumed", **msgspec.structs.asdict(found))


def _look_into(folder: Path) -> tuple[_TrainerState, frozenset[str]]:
    with (folder / "trainer_state.json").open("rb") as file:
        state = msgspec.json.decode(file.read(LARGEST_STATE), type=_TrainerState)
    return state, parts_held(one.name for one in folder.iterdir())


def _number(tree: object, *keys: str) -> int | None:
    """Find a whole number in nested dictionaries, of which another version may have others."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree if isinstance(tree, int) else None


def _is_address(path: str) -> bool:
    return "://" in path


def _absolute(path: str) -> str:
    return redact_text(path if _is_address(path) else str(Path(path).absolute()))


def _age_s(path: str) -> float | None:
    if _is_address(path):
        return None
    try:
        written = within(LOOK_LIMIT_S, lambda: Path(path).stat().st_mtime)
    except (OSError, NoAnswer):
        return None
    return max(0.0, round(time.time() - written, 3))
