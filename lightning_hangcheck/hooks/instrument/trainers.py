"""Lightning's Trainer, of both packages: its construction and stages, and a HangCheck in each."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.instrument.checkpoints import watch_saves
from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import afterwards, in_section
from lightning_hangcheck.hooks.instrument.wrapping import Call, by_name, wrap
from lightning_hangcheck.hooks.lightning_callback import HangCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    from lightning_hangcheck.hooks.instrument.wrapping import Around

STAGES = ("fit", "validate", "test", "predict")


def instrument(module: ModuleType) -> None:
    """Watch the Trainer of this module, or the connector with which it chooses an accelerator."""
    if hasattr(module, "_AcceleratorConnector"):
        connector = module._AcceleratorConnector  # noqa: SLF001 - there is no other door
        wrap(connector, "__init__", afterwards(lambda _: passed(8)))
    if not module.__name__.endswith(".trainer.trainer"):
        return
    trainer = module.Trainer
    wrap(trainer, "__init__", in_section("Trainer constructor", then=_made))
    for name in STAGES:
        wrap(trainer, name, _stage(name, getattr(trainer, name)))
    watch_saves(trainer)


def _made(call: Call) -> None:
    callbacks = call.instance.callbacks
    if not any(isinstance(one, HangCheck) for one in callbacks):
        # in front: Lightning keeps callbacks that save checkpoints at the end
        callbacks.insert(0, HangCheck())
    passed(11)


def _stage(name: str, function: Callable[..., object]) -> Around:
    signature = inspect.signature(function)
    finished = (lambda _: passed(12)) if name == "fit" else None
    section = in_section(f"Trainer.{name}", then=finished)

    @contextmanager
    def stage(call: Call) -> Iterator[None]:
        if by_name(call, signature).get("datamodule") is not None:
            passed(7)
        with section(call):
            yield

    return stage
