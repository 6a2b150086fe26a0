"""What a run reads and writes: models, data, checkpoints, experiment records.

Each of these calls becomes a section. A model's weights count as progress one by one. A section
that speaks of saving a checkpoint counts as a save when it ends well, so the name must be true:
``torch.save`` writes many other things too.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.checkpoints.contents import PARTS, parts_held
from lightning_hangcheck.hooks.checkpoints.resuming import of_huggingface, tell
from lightning_hangcheck.hooks.checkpoints.saves import EVERYTHING, HISTORY_ALONE, SavedParts
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.loading.loading_seams import follow_loading
from lightning_hangcheck.hooks.pretrained.loading.shard_progress import ShardProgress
from lightning_hangcheck.hooks.pretrained.loading.watched_load import UNSEEN, Load, announce
from lightning_hangcheck.hooks.pretrained.offloading import tell_offloaded_parts
from lightning_hangcheck.hooks.pretrained.placement import class_and_device
from lightning_hangcheck.hooks.zero_code.optimizers import has_scheduler
from lightning_hangcheck.hooks.zero_code.sections import (
    afterwards,
    in_section,
    is_inside,
    is_outermost,
    passed,
)
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    WatchedFunction,
    by_name,
    unwrap,
    wrap,
)
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType


def instrument_model_loading(module: ModuleType) -> None:
    """Watch what the classes of this module have of it.

    Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.
    """
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        if owner.__module__ != module.__name__ or "from_pretrained" not in vars(owner):
            continue
        if "Tokenizer" in owner.__name__ or "Processor" in owner.__name__:
            wrap(owner, "from_pretrained", _tokenizer)
        elif "Model" in owner.__name__:
            wrap(owner, "from_pretrained", _loading_model)
            wrap(owner, "from_config", _configured_model)


def _named(what: str) -> Callable[[Call], str]:
    """Name a section after the class whose class method is called."""
    return lambda call: f"{what} ({call.instance.__name__})"


_tokenizer = in_section("tokenizer", _named("tokenizer from_pretrained"), then=lambda _: passed(4))
_configured_model = in_section("model", _named("model from_config"), then=lambda _: passed(5))
_title = _named("model from_pretrained")
_model = in_section("model", _title, then=lambda _: passed(5))


@contextmanager
def _loading_model(call: Call) -> Iterator[None]:
    recorder = current()
    if not is_outermost("model", _title(call)):
        with _model(call):
            yield
        return
    _announce(call, "model")
    progress = ShardProgress(UNSEEN, recorder.say, recorder.beat)
    with _model(call), follow_loading(progress):
        yield
    # a model alone, or with what from_pretrained tells of the load (output_loading_info=True)
    model = call.result[0] if isinstance(call.result, tuple) else call.result
    attempt("a look at the model", partial(_look_at, model))


def _look_at(model: Any) -> None:  # noqa: ANN401 - of any class of transformers
    recorder = current()
    recorder.say(class_and_device(model))
    tell_offloaded_parts(model, recorder)


def instrument_generation_config(module: ModuleType) -> None:
    """Watch how a generation config is read, but for the one that a model brings."""
    wrap(module.GenerationConfig, "from_pretrained", _loading_generation_config)


_generation_config_title = _named("model config from_pretrained")
_generation_config = in_section("model config", _generation_config_title)


@contextmanager
def _loading_generation_config(call: Call) -> Iterator[None]:
    if is_inside("model"):
        yield
        return
    if is_outermost("model config", _generation_config_title(call)):
        _announce(call, "model config")
    with _generation_config(call):
        yield


def _announce(call: Call, what: str) -> None:
    """Say what will be loaded and what may go wrong with it; no name is given for a new one."""
    name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
    name = call.named.get("pretrained_model_name") if name is None else name
    if isinstance(name, (str, os.PathLike)):
        loader = call.instance.__name__
        load = Load(name=str(name), loader=loader, what=what, named=dict(call.named))
        attempt("looking at the files", partial(announce, current(), load))


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
    wrap(module, "init", in_section("wandb.init"))
    finished = in_section("wandb.finish")
    wrap(module, "finish", finished)
    if hasattr(module, "Run"):
        wrap(module.Run, "finish", finished)
