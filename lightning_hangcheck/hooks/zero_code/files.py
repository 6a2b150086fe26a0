"""What a run reads and writes: data, checkpoints, experiment records; for models see `models`.

Each of these calls becomes a section. One that speaks of saving a checkpoint counts as a save when
it ends well, so the name must be true: ``torch.save`` writes many other things too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.checkpoints import (
    EVERYTHING,
    HISTORY_ALONE,
    PARTS,
    SavedParts,
    of_huggingface,
    parts_held,
    tell,
)
from lightning_hangcheck.hooks.zero_code.optimizers import has_scheduler
from lightning_hangcheck.hooks.zero_code.sections import afterwards, in_section, passed
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    WatchedFunction,
    by_name,
    unwrap,
    wrap,
)
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.experiments import Experiment, note_experiment

if TYPE_CHECKING:
    from types import ModuleType


def instrument_data_loading(module: ModuleType) -> None:
    """Watch ``DataLoader``, or ``load_dataset`` and ``load_from_disk`` of datasets."""
    for name in ("load_dataset", "load_from_disk"):
        wrap(module, name, in_section("dataset", f"datasets.{name}"))
    if not hasattr(module, "DataLoader"):
        return
    wrap(module.DataLoader, "__init__", in_section("DataLoader constructor"))
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    # a step must not pay for what only its first batch can tell, so the watcher goes with that
    wrap(
        iterator,
        "__next__",
        in_section("first batch of a DataLoader", then=lambda _: unwrap(iterator, "__next__")),
    )


def instrument_checkpoints(module: ModuleType) -> None:
    """Watch torch.serialization."""
    signature = inspect.signature(module.save)

    def title(call: Call) -> str:
        told = by_name(call, signature)
        kept = is_checkpoint(told.get("obj"), told.get("f"))
        return "torch.save of a checkpoint" if kept else "torch.save"

    def note(call: Call) -> None:
        told = by_name(call, signature)
        if is_checkpoint(told.get("obj"), told.get("f")):
            _note_saved(_parts_of(told["obj"]), "save optimizer.state_dict() and the step, too")

    wrap(module, "save", in_section("saving", title, then=note))
    wrap(module, "load", in_section("loading", "torch.load of a checkpoint"))


def instrument_sharded_saves(module: ModuleType) -> None:
    """Watch torch.distributed.checkpoint; one that goes on in the background counts at once."""
    for name in ("save", "async_save"):
        wrap(module, name, in_section("saving", f"torch.distributed {name} of a checkpoint"))


def watch_saves(trainer: type) -> None:
    """Watch the method with which a Trainer class writes a whole checkpoint; again does nothing.

    Args:
        trainer: Of Lightning or of transformers.
    """
    for name, note in (
        ("save_checkpoint", _note_of_lightning),
        ("_save_checkpoint", _note_of_huggingface),
    ):
        if not isinstance(vars(trainer).get(name), WatchedFunction):
            wrap(trainer, name, in_section("saving", "Trainer.save_checkpoint", then=note))


def _note_of_lightning(call: Call) -> None:
    alone = call.named.get("weights_only") or call.arguments[1:2] == (True,)
    held = HISTORY_ALONE if alone else EVERYTHING
    _note_saved(held, "ModelCheckpoint(save_weights_only=False) keeps them")


def _note_of_huggingface(call: Call) -> None:
    alone = getattr(call.instance.args, "save_only_model", False)
    held = HISTORY_ALONE if alone else EVERYTHING
    _note_saved(held, "TrainingArguments(save_only_model=False) keeps them")


def _note_saved(held: frozenset[str], remedy: str) -> None:
    needed = PARTS if has_scheduler() else [part for part in PARTS if part != "scheduler"]
    _saved_parts().note(held, needed, remedy)


@cache
def _saved_parts() -> SavedParts:
    return SavedParts(current())


def _parts_of(what: Any) -> frozenset[str]:  # noqa: ANN401 - any state
    """By the keys of a dictionary, else by the classes that it is of: an optimizer is one."""
    names = what if isinstance(what, Mapping) else [one.__name__ for one in type(what).__mro__]
    return parts_held(names)


def watch_resuming(trainer: type) -> None:
    """Watch the method with which transformers' Trainer class goes on; again does nothing."""
    name = "_load_optimizer_and_scheduler"
    method = vars(trainer).get(name)
    if method is None or isinstance(method, WatchedFunction):
        return
    signature = inspect.signature(method)

    def tell_of(call: Call) -> None:
        folder = by_name(call, signature).get("checkpoint")
        if folder is not None:
            tell(current(), of_huggingface(str(folder)))

    wrap(trainer, name, afterwards(tell_of))


def is_checkpoint(what: Any, where: Any) -> bool:  # noqa: ANN401 - torch.save takes anything
    """Whether ``torch.save`` keeps a state that training could go on from: a state in a file.

    Args:
        what: Is saved. A module, an optimizer and a dictionary are states; a tensor is data.
        where: A path, or an open file; a buffer in memory is no file.
    """
    is_file = isinstance(where, (str, os.PathLike)) or isinstance(getattr(where, "name", None), str)
    return is_file and (isinstance(what, Mapping) or hasattr(type(what), "state_dict"))


def instrument_experiments(module: ModuleType) -> None:
    """Watch what this module has of it."""
    if hasattr(module, "WandbLogger"):
        made = in_section("WandbLogger constructor", then=lambda _: passed(9))
        wrap(module.WandbLogger, "__init__", made)
    wrap(module, "init", in_section("wandb.init", then=_note_experiment))
    finished = in_section("wandb.finish")
    wrap(module, "finish", finished)
    if hasattr(module, "Run"):
        wrap(module.Run, "finish", finished)


def _note_experiment(call: Call) -> None:
    """Say where an alert of this run would go; one that is disabled is nowhere."""
    recorder, run = current(), call.result
    if recorder.session is None or run is None or run.disabled:
        return
    made = Experiment(
        entity=run.entity,
        project=run.project,
        run_id=run.id,
        server=run.settings.base_url,
        offline=bool(run.offline),
        rank=recorder.identity.rank,
    )
    note_experiment(recorder.session, os.getpid(), made)
