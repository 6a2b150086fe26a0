"""Records unchanged scripts, when `hangcheck run` starts them.

In every process Python imports ``sitecustomize`` from `inject` before the script. That file decides
whether the process is a rank, and only then uses this module. The code that wraps frameworks is
imported with the first framework: a rank without frameworks does not pay for it.
"""

from __future__ import annotations

import os
import sys
import threading
from functools import cache
from importlib import import_module
from pathlib import Path

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import current

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Literal, TypeAlias

    Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]


REHEARSAL = "HANGCHECK_REHEARSAL"
"""Environment variable with a `rehearsal.Part` as JSON: its presence makes a run a rehearsal."""
INJECT_FOLDER = Path(__file__).parent / "inject"
LARGEST_SCRIPT = 1_000_000  # bytes that are read
NAMES: dict[Number, str] = {
    1: "Script started",
    4: "Tokenizer loaded",
    5: "Model created",
    7: "DataModule ready",
    8: "Accelerator configured",
    9: "WandbLogger ready (prime suspect)",
    11: "Trainer ready (prime suspect)",
    12: "Training finished",
}
"""Checkpoints of the reference script that a watched call proves."""
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
    ("transformers.generation.configuration_utils", "loading.instrument_config"),
    ("transformers.pipelines.base", "generating.instrument_pipelines"),
    ("transformers.modeling_utils", "loading.instrument_loading"),
    ("transformers.tokenization_utils_base", "loading.instrument_loading"),
    ("transformers.models.auto.modeling_auto", "loading.instrument_loading"),
    ("transformers.models.auto.tokenization_auto", "loading.instrument_loading"),
    ("transformers.models.auto.processing_auto", "loading.instrument_loading"),
    (_HF_TRAINER, "zero_code.loops.instrument_huggingface"),
    ("FABRIC.fabric", "zero_code.loops.instrument_fabric"),
    ("FABRIC.wrappers", "zero_code.loops.instrument_fabric"),
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


def start() -> None:
    """Record this process from here on: its page, pulse, records, last words and exit."""
    be_watched(current())
    # at exit, Python calls functions registered here, then waits for non-daemon threads, then calls
    # exit handlers; private, because nothing else is called that early (3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)
    passed(1)


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


def injected(python_path: str | None) -> str:
    """Return the PYTHONPATH with our folder in front."""
    return os.pathsep.join(filter(None, (str(INJECT_FOLDER), python_path)))


@cache
def passed(number: Number) -> None:
    """Report once that a checkpoint was passed, unless the script uses this package itself."""
    if not _script_names_us():
        current().checkpoint(NAMES[number], number, ours=True)


@cache
def _script_names_us() -> bool:
    script = Path(sys.argv[0]) if sys.argv else Path()
    try:
        with script.open("rb") as file:
            return b"lightning_hangcheck" in file.read(LARGEST_SCRIPT)
    except OSError:  # python -c, python -m
        return False
