"""Hugging Face's Trainer: its construction and stages, and a callback of ours in each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.huggingface_callback import HuggingFaceHangCheck
from lightning_hangcheck.hooks.instrument.checkpoints import watch_saves
from lightning_hangcheck.hooks.instrument.numbered import passed
from lightning_hangcheck.hooks.instrument.places import in_section
from lightning_hangcheck.hooks.instrument.wrapping import Call, wrap

if TYPE_CHECKING:
    from types import ModuleType


def instrument(module: ModuleType) -> None:
    """Watch transformers' Trainer."""
    trainer = module.Trainer
    wrap(trainer, "__init__", in_section("Trainer constructor", then=_made))
    wrap(trainer, "train", in_section("Trainer.train", then=lambda _: passed(12)))
    for name in ("evaluate", "predict"):
        wrap(trainer, name, in_section(f"Trainer.{name}"))
    watch_saves(trainer)
    wrap(trainer, "save_model", in_section("saving", "Trainer.save_model of a checkpoint"))


def _made(call: Call) -> None:
    handler = call.instance.callback_handler
    if not any(isinstance(one, HuggingFaceHangCheck) for one in handler.callbacks):
        handler.add_callback(HuggingFaceHangCheck())
    passed(11)
