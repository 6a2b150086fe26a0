"""Which of our files goes to work when which module of a framework is imported."""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING

import wrapt

from lightning_hangcheck import log

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_HERE = __package__
_C10D = "torch.distributed.distributed_c10d"
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
JOINING = (
    (_C10D, "groups.instrument_joining"),
    (_C10D, "groups.instrument_notes"),
    (_C10D, "groups.instrument_calls"),
    ("torch.distributed.rpc", "groups.instrument_rpc"),
)
"""What must be watched before anybody can have taken a function of torch.distributed by name."""
WATCHED = (
    (_C10D, "groups.instrument_groups"),
    ("torch.optim.optimizer", "optimizers.instrument_optimizers"),
    ("torch.optim.lr_scheduler", "optimizers.instrument_loop"),
    ("torch.amp.grad_scaler", "optimizers.instrument_loop"),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "trainers.instrument_sharding",
    ),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "trainers.instrument_sharding"),
    ("torch.serialization", "files.instrument_checkpoints"),
    ("torch.distributed.checkpoint.state_dict_saver", "files.instrument_sharded_saves"),
    ("torch.utils.data.dataloader", "files.instrument_data_loading"),
    ("datasets.load", "files.instrument_data_loading"),
    ("wandb.sdk.wandb_init", "files.instrument_experiments"),
    ("wandb.sdk.wandb_run", "files.instrument_experiments"),
    ("transformers.generation.utils", "hugging_face.instrument_generation"),
    ("transformers.pipelines.base", "hugging_face.instrument_pipelines"),
    (
        "transformers.generation.configuration_utils",
        "hugging_face.instrument_generation_config",
    ),
    ("transformers.modeling_utils", "hugging_face.instrument_model_loading"),
    ("transformers.models.auto.modeling_auto", "hugging_face.instrument_model_loading"),
    ("transformers.tokenization_utils_base", "hugging_face.instrument_model_loading"),
    ("transformers.models.auto.tokenization_auto", "hugging_face.instrument_model_loading"),
    ("transformers.models.auto.processing_auto", "hugging_face.instrument_model_loading"),
    ("transformers.trainer", "trainers.instrument_huggingface"),
    ("accelerate.accelerator", "trainers.instrument_accelerators"),
    ("lightning.fabric.fabric", "trainers.instrument_fabric"),
    ("lightning.fabric.wrappers", "trainers.instrument_fabric"),
    ("lightning_fabric.fabric", "trainers.instrument_fabric"),
    ("lightning_fabric.wrappers", "trainers.instrument_fabric"),
    *((f"{package}.loggers.wandb", "files.instrument_experiments") for package in _LIGHTNING),
    *((f"{package}.trainer.trainer", "trainers.instrument_trainers") for package in _LIGHTNING),
    *((f"{package}.trainer.call", "trainers.instrument_hooks") for package in _LIGHTNING),
    *(
        (f"{package}.trainer.connectors.accelerator_connector", "trainers.instrument_trainers")
        for package in _LIGHTNING
    ),
)
"""Modules as they are imported, and which file and function of this folder then wraps them."""


@cache
def watch_joining() -> None:
    """Notice when this process becomes a rank of a process group, or of RPC."""
    for module, ours in JOINING:
        _watch(module, ours)


@cache
def watch_ranks() -> None:
    """Have all else wrapped as soon as it is imported, or now if it is there."""
    for module, ours in WATCHED:
        _watch(module, ours)


def _watch(module: str, ours: str) -> None:
    wrapt.register_post_import_hook(partial(_instrument, ours), module)


def _instrument(ours: str, module: ModuleType) -> None:
    try:
        find_instrument(ours)(module)
    except Exception as error:  # noqa: BLE001 - else the framework's import would fail
        log.once(f"instrument-{ours}", f"{module.__name__} is not watched: {error!r}")


def find_instrument(ours: str) -> Callable[[ModuleType], None]:
    """Import a function of this room by its file and name; it loads nothing before it is needed."""
    file, _, function = ours.rpartition(".")
    found: Callable[[ModuleType], None] = getattr(import_module(f"{_HERE}.{file}"), function)
    return found
