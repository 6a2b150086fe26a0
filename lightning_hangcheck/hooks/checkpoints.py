"""Checkpoints: which one training resumes from, and whether saved ones hold what resuming needs.

Both are decided by names: keys of saved dictionaries, files of a folder, arguments. The only file
opened is Hugging Face's trainer_state.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.zero_code.wrapping import Call, in_section, wrap
from lightning_hangcheck.model.slugs import words_of
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import seconds_in_words
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from lightning_hangcheck.recorder.lifecycle import Recorder

PARTS = {
    "optimizer state": frozenset({"optimizer", "optimizers", "optim", "opt", "groups"}),
    "scheduler": frozenset({"scheduler", "schedulers", "sched", "lrs"}),
    "history": frozenset(
        {"trainer", "loops", "loop", "epoch", "epochs", "step", "steps", "iteration", "iterations"}
        | {"history", "progress", "log", "logs", "losses", "metrics"}
    ),
}
"""What resuming needs to continue as if never stopped, by words in the names under which it is
kept: Lightning's keys ``optimizer_states``, ``lr_schedulers``, ``loops``; Hugging Face's files
``optimizer.pt``, ``scheduler.pt``, ``trainer_state.json``; those of PyTorch's tutorial on saving,
``optimizer_state_dict``, ``epoch``; an optimizer's own ``param_groups``, a scheduler's own
``base_lrs``."""
STARTS_ANEW = {
    "optimizer state": "no optimizer state (its moments start at zero)",
    "scheduler": "no scheduler (the learning rate starts anew)",
    "history": "no step or epoch (the loop starts at its first)",
}
MOST_NAMES = 10_000
LOOK_LIMIT_S = 2.0
"""The file was read a moment ago; only storage that has stalled since takes so long."""
LARGEST_STATE = 64 * 1024 * 1024
"""Bytes of trainer_state.json; 100,000 logged steps of five values each take 15 MB."""


def parts_held(names: Iterable[object]) -> frozenset[str]:
    """Return the parts of `PARTS` that a checkpoint with these keys or files holds."""
    words: set[str] = set()
    for _, name in zip(range(MOST_NAMES), names, strict=False):
        words.update(words_of(name) if isinstance(name, str) else ())
    return frozenset(part for part, known in PARTS.items() if known & words)


class Resumption(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that training resumes from: what is known of it, and what it lacks."""

    path: str
    step: int | None = None
    seen: str = ""
    age_s: float | None = None
    lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        step = f"step {self.step}" if self.step is not None else ""
        age = f"written {seconds_in_words(self.age_s)} ago" if self.age_s is not None else ""
        facts = ", ".join(filter(None, (step, self.seen, age))) or "nothing is known of it"
        without = f"; it holds no {' and no '.join(self.lacks)}: what it lacks starts anew"
        return f"training goes on from {self.path}: {facts}" + (without if self.lacks else "")


def tell(recorder: Recorder, found: Resumption) -> None:
    """Report the checkpoint, and count it as the last checkpoint until the next save."""
    recorder.page.mark_loaded(time.time_ns(), found.step)
    recorder.say(str(found))
    recorder.note("resumed", **msgspec.structs.asdict(found))


def of_lightning(path: str, checkpoint: Mapping[str, Any]) -> Resumption:
    """Describe the checkpoint that Lightning has loaded."""

    def number(*keys: str) -> int | None:
        """Read an integer from nested dictionaries, whose keys differ between versions."""
        tree: object = checkpoint
        for key in keys:
            tree = tree.get(key) if isinstance(tree, Mapping) else None
        return tree if isinstance(tree, int) else None

    batches = number("loops", "fit_loop", "epoch_loop.batch_progress", "total", "completed")
    epoch = number("epoch")
    seen = f"epoch {epoch}" if epoch is not None else ""
    if batches:
        counted = f"{batches} {'batch' if batches == 1 else 'batches'} seen"
        seen = f"{seen}, {counted}" if seen else counted
    return _written(path, step=number("global_step"), seen=seen)


class _TrainerState(msgspec.Struct):
    global_step: int | None = None
    epoch: float | None = None


def of_huggingface(folder: str) -> Resumption:
    """Describe what Hugging Face's Trainer is about to load; it ignores missing parts."""

    def look() -> tuple[_TrainerState, frozenset[str]]:
        with Path(folder, "trainer_state.json").open("rb") as file:
            state = msgspec.json.decode(file.read(LARGEST_STATE), type=_TrainerState)
        return state, parts_held(path.name for path in Path(folder).iterdir())

    try:
        state, held = within(LOOK_LIMIT_S, look)
    except (OSError, NoAnswer, msgspec.MsgspecError):
        return Resumption(path=str(Path(folder).absolute()))
    seen = f"epoch {state.epoch:g}" if state.epoch is not None else ""
    lacks = tuple(part for part in PARTS if part not in held)
    return _written(folder, step=state.global_step, seen=seen, lacks=lacks)


def _written(path: str, **facts: Any) -> Resumption:  # noqa: ANN401 - its fields
    if "://" in path:
        return Resumption(path=redact_text(path), **facts)
    try:
        written = within(LOOK_LIMIT_S, lambda: Path(path).stat().st_mtime)
        facts["age_s"] = max(0.0, round(time.time() - written, 3))
    except (OSError, NoAnswer):
        pass
    return Resumption(path=redact_text(str(Path(path).absolute())), **facts)


@cache
def watch_resuming(trainer: type) -> None:
    """Watch the method with which transformers' Trainer class resumes; later calls do nothing."""

    def tell_of(call: Call) -> None:
        folder = call.given().get("checkpoint")
        if folder is not None:
            tell(current(), of_huggingface(str(folder)))

    wrap(trainer, "_load_optimizer_and_scheduler", after=tell_of)


class SavedParts:
    """Parts in all checkpoints that this process saved so far; missing parts are reported once.

    That happens at the second step with a save: an optimizer in a file of its own is saved by then.
    """

    def __init__(self) -> None:
        self._held: frozenset[str] = frozenset()
        self._step: int | None = None
        self._said = False

    def note(self, held: Iterable[str], remedy: str) -> None:
        """Record a successful save with these parts of `PARTS`."""
        from lightning_hangcheck.hooks.zero_code.loops import teller

        recorder = current()
        before, self._step = self._step, recorder.page.step
        self._held |= frozenset(held)
        needed = [part for part in PARTS if part != "scheduler" or teller().scheduled]
        lacking = [part for part in needed if part not in self._held]
        if self._said or not lacking or before is None or before == self._step:
            return
        self._said = True
        without = " and ".join(STARTS_ANEW[part] for part in lacking)
        recorder.say(f"the checkpoints saved so far hold {without}: {remedy}")
        recorder.note("saves_lack", parts=lacking)


_saved_parts = SavedParts()


@cache
def watch_saves(trainer: type) -> None:
    """Watch the method with which a Trainer class saves a checkpoint; later calls do nothing."""

    def of_lightning(call: Call) -> None:
        alone = call.given().get("weights_only")
        note(alone, "ModelCheckpoint(save_weights_only=False) keeps them")

    def of_huggingface(call: Call) -> None:
        alone = getattr(call.instance.args, "save_only_model", False)
        note(alone, "TrainingArguments(save_only_model=False) keeps them")

    def note(alone: object, remedy: str) -> None:
        # a Trainer's weights-only checkpoint still holds the history
        _saved_parts.note(["history"] if alone else PARTS, remedy)

    for name, then in (("save_checkpoint", of_lightning), ("_save_checkpoint", of_huggingface)):
        wrap(trainer, name, in_section("saving", "Trainer.save_checkpoint", then=then))


def instrument_saves(module: ModuleType) -> None:
    """Watch torch.serialization; a save counts if it ends well, so its name must be true."""

    def saved(call: Call) -> Any | None:  # noqa: ANN401 - any state
        arguments = call.given()
        return arguments["obj"] if is_checkpoint(arguments.get("obj"), arguments.get("f")) else None

    def title(call: Call) -> str:
        return "torch.save" if saved(call) is None else "torch.save of a checkpoint"

    def note(call: Call) -> None:
        what = saved(call)
        if what is not None:  # by a dictionary's keys, else by class names: Optimizer
            mapped = isinstance(what, Mapping)
            names = what if mapped else [kind.__name__ for kind in type(what).__mro__]
            _saved_parts.note(parts_held(names), "save optimizer.state_dict() and the step, too")

    wrap(module, "save", in_section("saving", title, then=note))


def is_checkpoint(what: Any, where: Any) -> bool:  # noqa: ANN401 - torch.save takes anything
    """Whether ``torch.save`` keeps a state in a file: a module, an optimizer or a dictionary."""
    is_file = isinstance(where, (str, os.PathLike)) or isinstance(getattr(where, "name", None), str)
    return is_file and (isinstance(what, Mapping) or hasattr(type(what), "state_dict"))
