"""Records scripts that never heard of this package, when `hangcheck run` starts them.

Python imports ``sitecustomize`` from `inject` before the script, in every process; that file
decides whether it is in a rank, and only then comes here. What wraps frameworks is imported with
the first of them: a rank that needs none does not pay for it.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

REHEARSAL = "HANGCHECK_REHEARSAL"
"""Environment variable with a `rehearsal.Part` as JSON: its presence makes a run a rehearsal."""
INJECT_FOLDER = Path(__file__).parent / "inject"
LARGEST_SCRIPT = 1_000_000  # bytes that are looked at
Number: TypeAlias = Literal[1, 4, 5, 7, 8, 9, 11, 12]
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
"""Packages that are one under two names; below, a module's name may begin with either word."""
JOINING = (
    (_C10D, "zero_code.groups.instrument_joining"),
    (_C10D, "zero_code.groups.instrument_groups"),
    (_C10D, "zero_code.groups.instrument_calls"),
    ("torch.distributed.rpc", "zero_code.groups.instrument_rpc"),
)
"""What must be watched before anybody can have taken a function of torch.distributed by name."""
WATCHED = (
    (_C10D, "zero_code.groups.instrument_leaving"),
    ("torch.optim.optimizer", "zero_code.loops.instrument_optimizers"),
    ("torch.optim.lr_scheduler", "zero_code.loops.instrument_loop"),
    ("torch.amp.grad_scaler", "zero_code.loops.instrument_loop"),
    ("torch.distributed.fsdp.fully_sharded_data_parallel", "zero_code.loops.instrument_sharding"),
    ("torch.distributed.fsdp._fully_shard._fully_shard", "zero_code.loops.instrument_sharding"),
    ("torch.serialization", "checkpoints.instrument_saves"),
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
"""Modules as they are imported, and which file and function of hooks then wraps them."""
SECTIONS: tuple[tuple[str, str, str, str, Number | None], ...] = (
    (_C10D, "barrier", "dist.barrier", "", None),
    (_C10D, "monitored_barrier", "dist.barrier", "", None),
    ("torch.serialization", "load", "loading", "torch.load of a checkpoint", None),
    (_SAVER, "save", "saving", "torch.distributed save of a checkpoint", None),
    # one that goes on in the background counts at once
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
"""Calls that are sections: module, function, kind (which names it unless a title follows), and the
checkpoint that they prove."""


def start() -> None:
    """Record this process from here on: its page, pulse, records, last words and exit."""
    be_watched(current())
    # Python first calls what was registered here, then waits for threads that are no daemons, then
    # calls exit handlers: private, as nothing else is called that early (3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)
    passed(1)


def watch(*, is_child: bool) -> None:
    """Have what frameworks do watched; called when the first of them is about to be imported."""
    # imported here: it takes what a framework imports anyway, and other processes need not pay it
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
    """Have all else wrapped as soon as it is imported, or now if it is there."""
    for module, ours in WATCHED:
        on_import(module, ours)
    for module in dict.fromkeys(row[0] for row in SECTIONS):
        on_import(module, "zero_code.loops.instrument_sections")


_awaited: dict[str, list[Callable[[ModuleType], None]]] = {}
"""What is to be called with a module once that is imported."""


def on_import(named: str, ours: str | Callable[[ModuleType], None]) -> None:
    """Call a function of ours with a module when that is imported, or now if it is there.

    It may be named by its file below hooks: it is imported only then.
    """

    def instrument(module: ModuleType) -> None:
        def act() -> None:
            (find_instrument(ours) if isinstance(ours, str) else ours)(module)

        attempt(f"watching {module.__name__}", act)  # else the framework's import would fail

    if not any(isinstance(finder, _Importing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Importing())
    for name in modules_of(named):
        if name in sys.modules:
            instrument(sys.modules[name])
        else:
            _awaited.setdefault(name, []).append(instrument)


class _Importing:
    """Has the loader that others find for an awaited module tell when it has executed that."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        others = [one for one in sys.meta_path if one is not self] if name in _awaited else ()
        for other in others:
            find = getattr(other, "find_spec", None)  # an old one has none: Python skips it, too
            spec: ModuleSpec | None = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    attempt(f"awaiting {name}", _tell_when_executed, spec.loader, name)
                return spec
        return None


def _tell_when_executed(loader: Any, name: str) -> None:  # noqa: ANN401 - of any kind
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        if module.__name__ == name:  # a loader may be that of several modules
            with suppress(AttributeError):
                del loader.exec_module
            for instrument in _awaited.pop(name, ()):
                instrument(module)

    loader.exec_module = exec_module


def modules_of(named: str) -> list[str]:
    """Return a module's names: two, if it is of a family."""
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
    """Say once that a checkpoint was passed; a script that names this package says its own."""
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
