"""How models, tokenizers and their configs are loaded; imported with transformers, not before.

Each of these calls becomes a section. A model's weights count as progress one by one.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.loading.loading_seams import follow_loading
from lightning_hangcheck.hooks.pretrained.loading.shard_progress import ShardProgress
from lightning_hangcheck.hooks.pretrained.loading.watched_load import UNSEEN, Load, announce
from lightning_hangcheck.hooks.pretrained.offloading import tell_offloaded_parts
from lightning_hangcheck.hooks.pretrained.placement import class_and_device
from lightning_hangcheck.hooks.zero_code.sections import (
    in_section,
    is_inside,
    is_outermost,
    passed,
)
from lightning_hangcheck.hooks.zero_code.wrapping import Call, wrap
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
