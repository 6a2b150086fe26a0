"""Takes part in a rehearsal: few epochs on CPU ranks, whatever the program asks for."""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.hooks.rehearsal import scenes
from lightning_hangcheck.hooks.rehearsal.scenes import (
    Foreign,
    Rehearsal,
    arguments_of,
    stay_connected,
    tell_exceptions,
)
from lightning_hangcheck.hooks.zero_code.start import on_import
from lightning_hangcheck.hooks.zero_code.wrapping import Call, replace
from lightning_hangcheck.model.rehearsal import VARIABLE, Part
from lightning_hangcheck.recorder.announcer import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

EPOCHS = 2
CUDA_CALLS = (
    "empty_cache", "init", "ipc_collect", "reset_max_memory_allocated", "reset_peak_memory_stats",
    "set_device", "synchronize",
)  # fmt: skip
NEEDS_GPUS = ("fsdp", "deepspeed", "modelparallel", "model_parallel", "bagua", "colossal")


def make_trainer(rehearsal: Rehearsal, call: Call) -> None:
    """Have Lightning's Trainer run few epochs on CPU ranks."""
    named, batches = call.named, rehearsal.part.batches
    changed = {"log_every_n_steps": 1, "min_epochs": None, "min_steps": None}
    changed |= _on_cpus(rehearsal, named)
    if not named.get("fast_dev_run"):
        epochs = named.get("max_epochs")
        changed["max_epochs"] = EPOCHS if epochs in (None, -1) else min(epochs, EPOCHS)
    if named.get("max_steps", -1) not in (None, -1):
        changed["max_steps"] = min(named["max_steps"], EPOCHS * batches)
    if type(named.get("val_check_interval")) is int:
        changed["val_check_interval"] = min(named["val_check_interval"], batches)
    if named.get("check_val_every_n_epoch", 1):
        changed["check_val_every_n_epoch"] = 1
    if named.get("sync_batchnorm"):
        rehearsal.note("changed", "sync_batchnorm is off: it needs GPUs")
        changed["sync_batchnorm"] = False
    call.go(**changed)


def _on_cpus(rehearsal: Rehearsal, named: Mapping[str, Foreign]) -> dict[str, Foreign]:
    """What replaces the hardware that Lightning's Trainer or Fabric is asked for."""
    changed = {"accelerator": "cpu", "devices": rehearsal.part.ranks, "num_nodes": 1}
    strategy = named.get("strategy", "auto")
    name = (strategy if isinstance(strategy, str) else type(strategy).__name__).lower()
    if any(one in name for one in NEEDS_GPUS):
        rehearsal.note("changed", f"the strategy {name} needs GPUs: ddp takes its place")
        changed["strategy"] = "ddp"
    if str(named.get("precision", "")) in ("16", "16-mixed", "16-true", "transformer-engine"):
        rehearsal.note("changed", f"precision {named['precision']} needs GPUs: 32-true")
        changed["precision"] = "32-true"
    return changed


def make_fabric(rehearsal: Rehearsal, call: Call) -> None:
    """Have Fabric run on CPU ranks."""
    given = arguments_of(call)
    call.function(**{**given, **_on_cpus(rehearsal, given)})


def make_checkpoints(rehearsal: Rehearsal, call: Call) -> None:
    """Have Lightning's ModelCheckpoint save within the few batches."""
    most = {"every_n_train_steps": rehearsal.part.batches, "every_n_epochs": 1}
    given = {name: call.named.get(name) for name in most}
    call.go(**{name: min(n, most[name]) for name, n in given.items() if isinstance(n, int)})


def settle_arguments(rehearsal: Rehearsal, call: Call) -> None:
    """Have transformers' Trainer run few steps on CPU ranks."""
    given, batches = call.instance, rehearsal.part.batches
    new: dict[str, Foreign] = {"use_cpu": True, "fp16": False, "ddp_backend": "gloo"}
    new |= {"num_train_epochs": min(float(given.num_train_epochs), EPOCHS)}
    new |= {"dataloader_pin_memory": False}
    if given.max_steps > 0:
        new["max_steps"] = min(given.max_steps, EPOCHS * batches)
    for name in ("save_steps", "eval_steps", "logging_steps"):
        if getattr(given, name, None):
            new[name] = min(getattr(given, name), batches)
    for name in ("fsdp", "deepspeed"):
        if getattr(given, name, None):
            rehearsal.note("changed", f"{name} needs GPUs: ddp takes its place")
            new[name] = None
    for name, value in new.items():
        if hasattr(given, name):
            setattr(given, name, value)
    call.go()


def make_group(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Have process groups made with gloo."""
    given = arguments_of(call)
    if "nccl" in str(given.get("backend") or ""):
        rehearsal.note("changed", "gloo in place of nccl")
        given["backend"] = "gloo"
    given.pop("device_id", None)
    group = call.function(**given)
    rehearsal.note("group", str(sys.modules["torch.distributed"].get_world_size()))
    return group


def leave_group(rehearsal: Rehearsal, call: Call) -> None:
    """Have process groups left with their connections open."""
    if (call.arguments[0] if call.arguments else call.named.get("group")) is None:
        attempt("leaving", stay_connected, rehearsal)
    call.go()


def wrap_module(_rehearsal: Rehearsal, call: Call) -> None:
    """Have DistributedDataParallel wrap modules on CPUs."""
    call.function(**{**arguments_of(call), "device_ids": None, "output_device": None})


def leave_batchnorm(rehearsal: Rehearsal, call: Call) -> Foreign:
    """Leave batch norms as they are: SyncBatchNorm refuses CPUs."""
    rehearsal.note("changed", "SyncBatchNorm is BatchNorm: it needs GPUs")
    return call.arguments[0] if call.arguments else call.named["module"]


def instrument_cuda(_rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have calls that choose a GPU do nothing."""
    for name in CUDA_CALLS:
        replace(module, name, lambda _: None)


def instrument_devices(rehearsal: Rehearsal, module: ModuleType) -> None:
    """Have tensors that shall be on a GPU stay on the CPU; ``module`` is torch, whole by now."""
    if not rehearsal.part.names_cuda:
        return
    from torch.overrides import TorchFunctionMode

    def on_cpu(value: Foreign) -> Foreign:
        is_device = isinstance(value, (str, module.device))
        return "cpu" if is_device and str(value).startswith("cuda") else value

    class OnCpu(TorchFunctionMode):  # type: ignore[misc] # torch is unknown to the type checker
        def __torch_function__(
            self,
            func: Callable[..., Foreign],
            types: Foreign,
            args: tuple[Foreign, ...] = (),
            kwargs: dict[str, Foreign] | None = None,
        ) -> Foreign:
            name, named = getattr(func, "__name__", ""), dict(kwargs or {})
            if name == "cuda":
                return args[0]
            if "device" in named:  # a number is a GPU's, too
                named["device"] = "cpu" if type(named["device"]) is int else on_cpu(named["device"])
            if name == "to":
                args = (
                    *args[:1],
                    *("cpu" if type(one) is int else on_cpu(one) for one in args[1:]),
                )
            return func(*args, **named)

    OnCpu().__enter__()

    def load(call: Call) -> Foreign:
        return call.function(*call.arguments[:1], **{**call.named, "map_location": "cpu"})

    replace(module, "load", load)


INSTRUMENTS: tuple[tuple[str, Callable[[Rehearsal, ModuleType], None]], ...] = (
    ("torch.utils.data.dataloader", scenes.instrument_data),
    ("torch.utils.data._utils.fetch", scenes.instrument_fetching),
    ("torch.nn.functional", scenes.instrument_losses),
    ("torch.nn.modules.module", scenes.instrument_modules),
    ("torch.optim.optimizer", scenes.instrument_steps),
    ("torch.cuda", instrument_cuda),
    ("torch", instrument_devices),
)
CALLS: tuple[tuple[str, str, Callable[[Rehearsal, Call], Foreign]], ...] = (
    ("torch.nn.modules.batchnorm", "SyncBatchNorm.convert_sync_batchnorm", leave_batchnorm),
    ("torch.nn.parallel.distributed", "DistributedDataParallel.__init__", wrap_module),
    ("torch.serialization", "save", scenes.save),
    ("safetensors.torch", "save_file", scenes.save),
    ("torch.distributed.distributed_c10d", "init_process_group", make_group),
    ("torch.distributed.distributed_c10d", "new_group", make_group),
    ("torch.distributed.distributed_c10d", "destroy_process_group", leave_group),
    ("transformers.training_args", "TrainingArguments.__post_init__", settle_arguments),
    ("FABRIC.fabric", "Fabric.__init__", make_fabric),
    ("LIGHTNING.trainer.trainer", "Trainer.__init__", make_trainer),
    ("LIGHTNING.callbacks.model_checkpoint", "ModelCheckpoint.__init__", make_checkpoints),
    ("LIGHTNING.callbacks.early_stopping", "EarlyStopping._evaluate_stopping_criteria",
     scenes.stop),
)  # fmt: skip
"""Functions whose place one of ours takes."""


def begin() -> None:
    """Take part in the rehearsal that the environment names; nothing of ours raises."""
    try:
        rehearsal = Rehearsal(msgspec.json.decode(os.environ[VARIABLE], type=Part))
    except (KeyError, msgspec.MsgspecError) as error:
        log.once("rehearsal", f"this rank takes no part in the rehearsal ({error})")
        return
    for module, instrument in INSTRUMENTS:
        on_import(module, partial(instrument, rehearsal))

    def take_place(
        owner: str, name: str, act: Callable[[Call], Foreign], module: ModuleType
    ) -> None:
        replace(getattr(module, owner) if owner else module, name, act)

    for module, function, act in CALLS:
        owner, _, name = function.rpartition(".")
        on_import(module, partial(take_place, owner, name, partial(act, rehearsal)))
    tell_exceptions(rehearsal)
    atexit.register(attempt, "leaving", stay_connected, rehearsal)
