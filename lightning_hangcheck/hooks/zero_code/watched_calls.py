"""Which calls of torch, Lightning, transformers, wandb and others are watched, and by what.

A row more in `SECTIONS` watches one call more.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from lightning_hangcheck.recorder.announcer import attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from lightning_hangcheck.hooks.zero_code.start import Number

REHEARSAL = "HANGCHECK_REHEARSAL"
"""Environment variable with a `rehearsal.Part` as JSON: its presence makes a run a rehearsal."""
_HOOKS = "lightning_hangcheck.hooks"
_C10D = "torch.distributed.distributed_c10d"
_SAVER = "torch.distributed.checkpoint.state_dict_saver"
_HF_TRAINER, _ACCELERATOR = "transformers.trainer", "accelerate.accelerator"
FAMILIES = {
    "LIGHTNING": ("lightning.pytorch", "pytorch_lightning"),
    "FABRIC": ("lightning.fabric", "lightning_fabric"),
}
"""Packages with two names each; module names below may begin with these words."""
JOINING = (
    (_C10D, "zero_code.groups.instrument_joining"),
    (_C10D, "zero_code.groups.instrument_groups"),
    (_C10D, "zero_code.groups.instrument_calls"),
    ("torch.distributed.rpc", "zero_code.groups.instrument_rpc"),
)
"""Must be watched before any code can import a function of torch.distributed by name."""
WATCHED = (
    (_C10D, "zero_code.groups.instrument_leaving"),
    ("torch.optim.optimizer", "zero_code.loops.instrument_optimizers"),
    ("torch.optim.lr_scheduler", "zero_code.loops.instrument_loop"),
    ("torch.amp.grad_scaler", "zero_code.loops.instrument_loop"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "zero_code.loops.instrument_sharding"),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "zero_code.loops.instrument_sharding"),
    ("torch.serialization", "callbacks.instrument_saves"),
    ("torch.utils.data.dataloader", "zero_code.loops.instrument_first_batch"),
    ("transformers.generation.utils", "generating.instrument_generation"),
    ("transformers.generation.configuration_utils", "loading.instrument_loading"),
    ("transformers.modeling_utils", "loading.instrument_loading"),
    ("transformers.tokenization_utils_base", "loading.instrument_loading"),
    ("transformers.models.auto.modeling_auto", "loading.instrument_loading"),
    ("transformers.models.auto.tokenization_auto", "loading.instrument_loading"),
    ("transformers.models.auto.processing_auto", "loading.instrument_loading"),
    (_HF_TRAINER, "zero_code.loops.instrument_huggingface"),
    ("FABRIC.fabric", "zero_code.loops.instrument_fabric"),
    ("LIGHTNING.trainer.trainer", "zero_code.loops.instrument_trainer"),
    ("LIGHTNING.trainer.connectors.accelerator_connector", "zero_code.loops.instrument_connector"),
    ("LIGHTNING.trainer.call", "zero_code.loops.instrument_hooks"),
)
"""Modules, and the file and function of hooks that wraps each once it is imported."""
SECTIONS: tuple[tuple[str, str, str, str, Number | None], ...] = (
    (_C10D, "barrier", "dist.barrier", "", None),
    (_C10D, "monitored_barrier", "dist.barrier", "", None),
    ("torch.serialization", "load", "loading", "torch.load of a checkpoint", None),
    (_SAVER, "save", "saving", "torch.distributed save of a checkpoint", None),
    # a save in the background counts at once
    (_SAVER, "async_save", "saving", "torch.distributed async_save of a checkpoint", None),
    ("torch.utils.data.dataloader", "DataLoader.__init__", "DataLoader constructor", "", None),
    ("datasets.load", "load_dataset", "dataset", "datasets.load_dataset", None),
    ("datasets.load", "load_from_disk", "dataset", "datasets.load_from_disk", None),
    ("wandb.sdk.wandb_init", "init", "wandb.init", "", None),
    ("wandb.sdk.wandb_run", "finish", "wandb.finish", "", None),
    ("wandb.sdk.wandb_run", "Run.finish", "wandb.finish", "", None),
    ("LIGHTNING.loggers.wandb", "WandbLogger.__init__", "WandbLogger constructor", "", 9),
    ("FABRIC.fabric", "Fabric.__init__", "Fabric constructor", "", 8),
    *(("FABRIC.fabric", f"Fabric.{name}", "Fabric setup", f"Fabric.{name}", None)
      for name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders")),
    ("FABRIC.fabric", "Fabric.barrier", "Fabric.barrier", "", None),
    ("FABRIC.fabric", "Fabric.save", "saving", "Fabric.save of a checkpoint", None),
    ("FABRIC.fabric", "Fabric.load", "loading", "Fabric.load of a checkpoint", None),
    ("transformers.pipelines.base", "Pipeline.__call__", "transformers.pipeline", "", None),
    (_HF_TRAINER, "Trainer.train", "Trainer.train", "", 12),
    (_HF_TRAINER, "Trainer.evaluate", "Trainer.evaluate", "", None),
    (_HF_TRAINER, "Trainer.predict", "Trainer.predict", "", None),
    (_HF_TRAINER, "Trainer.save_model", "saving", "Trainer.save_model of a checkpoint", None),
    (_ACCELERATOR, "Accelerator.__init__", "Accelerator constructor", "", 8),
    (_ACCELERATOR, "Accelerator.save_state", "saving", "Accelerator.save_state of a checkpoint",
     None),
    (_ACCELERATOR, "Accelerator.wait_for_everyone", "Accelerator.wait_for_everyone", "", None),
)  # fmt: skip
"""Calls that are sections: module, function, kind (also the name unless a title follows), and the
checkpoint that they prove."""


def watch(*, is_child: bool) -> None:
    """Watch frameworks; called when the first of them is about to be imported."""
    # imported here: needs what a framework imports anyway, and other processes need not pay
    from lightning_hangcheck.hooks.zero_code.groups import watch_children

    if REHEARSAL in os.environ:
        from lightning_hangcheck.hooks.rehearsal import begin

        begin()
    for module, ours in JOINING:
        on_import(module, ours)
    watch_children()
    if not is_child:
        watch_ranks()


@cache
def watch_ranks() -> None:
    """Wrap everything else once it is imported, or now if it is imported already."""
    for module, ours in WATCHED:
        on_import(module, ours)
    for module in dict.fromkeys(row[0] for row in SECTIONS):
        on_import(module, "zero_code.loops.instrument_sections")


def on_import(named: str, ours: str | Callable[[ModuleType], None]) -> None:
    """Call ours, also named by file and function, with a module once it is imported, or now."""

    def instrument(module: ModuleType) -> None:
        def act() -> None:
            (find_instrument(ours) if isinstance(ours, str) else ours)(module)

        attempt(f"watching {module.__name__}", act)  # otherwise the framework's import would fail

    import wrapt

    for name in modules_of(named):
        wrapt.register_post_import_hook(instrument, name)


def modules_of(named: str) -> list[str]:
    """Return a module's names: two, if it is in a family."""
    family, _, rest = named.partition(".")
    return [f"{package}.{rest}" for package in FAMILIES[family]] if family in FAMILIES else [named]


def find_instrument(ours: str) -> Callable[[ModuleType], None]:
    """Import a function of hooks by its file and name."""
    file, _, function = ours.rpartition(".")
    found: Callable[[ModuleType], None] = getattr(import_module(f"{_HOOKS}.{file}"), function)
    return found
