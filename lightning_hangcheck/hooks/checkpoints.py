"""Do the checkpoints that this process saves hold what training needs to go on from them?

Told by keys and arguments as they are saved; no file is opened. Said once, at the second step at
which it saves: those who keep the optimizer in a file of its own have saved it by then.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.model.naming.phase_words import words_of
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from lightning_hangcheck.recorder.lifecycle import Recorder


PARTS = {
    "optimizer state": frozenset({"optimizer", "optimizers", "optim", "opt", "groups"}),
    "scheduler": frozenset({"scheduler", "schedulers", "sched", "lrs"}),
    "history": frozenset(
        {"trainer", "loops", "loop", "epoch", "epochs", "step", "steps", "iteration", "iterations"}
        | {"history", "progress", "log", "logs", "losses", "metrics"}
    ),
}
"""What training needs to go on as if it had never stopped, by words of the names under which it is
kept: Lightning's keys ``optimizer_states``, ``lr_schedulers``, ``loops``; Hugging Face's files
``optimizer.pt``, ``scheduler.pt``, ``trainer_state.json``; those of PyTorch's tutorial on saving,
``optimizer_state_dict``, ``epoch``; an optimizer's own ``param_groups``, a scheduler's own
``base_lrs``."""
MOST_NAMES = 10_000


def parts_held(names: Iterable[object]) -> frozenset[str]:
    """Return the parts of `PARTS` that a checkpoint of such keys or files holds.

    Args:
        names: Keys of a dictionary, or names of a folder's files.
    """
    words: set[str] = set()
    for _, name in zip(range(MOST_NAMES), names, strict=False):
        words.update(words_of(name) if isinstance(name, str) else ())
    return frozenset(part for part, known in PARTS.items() if known & words)


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


EVERYTHING = frozenset(PARTS)
HISTORY_ALONE = frozenset({"history"})
"""What a Trainer's checkpoint of weights alone still holds."""
STARTS_ANEW = {
    "optimizer state": "no optimizer state (its moments start at zero)",
    "scheduler": "no scheduler (the learning rate starts anew)",
    "history": "no step or epoch (the loop starts at its first)",
}


class SavedParts:
    """What all checkpoints of one process held so far.

    Args:
        recorder: Of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._held: frozenset[str] = frozenset()
        self._step: int | None = None
        self._said = False

    def note(self, held: frozenset[str], needed: Collection[str], remedy: str) -> None:
        """Take a save that has ended well, and say once what none of them holds.

        Args:
            held: Parts of `PARTS` in it.
            needed: Those that this training has.
            remedy: How to keep them, too.
        """
        before, self._step = self._step, self._recorder.page.step
        self._held |= held
        lacking = [part for part in PARTS if part in needed and part not in self._held]
        if self._said or not lacking or before is None or before == self._step:
            return
        self._said = True
        without = " and ".join(STARTS_ANEW[part] for part in lacking)
        self._recorder.say(f"the checkpoints saved so far hold {without}: {remedy}")
        self._recorder.note("saves_lack", parts=lacking)
