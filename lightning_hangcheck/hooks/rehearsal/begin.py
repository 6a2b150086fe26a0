"""Has the right part of this room go to work when a module of a framework is imported."""

from __future__ import annotations

import atexit
import os
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.hooks.rehearsal import on_cpus, scenes
from lightning_hangcheck.hooks.rehearsal.rank import Rehearsal, stay_connected, tell_exceptions
from lightning_hangcheck.hooks.zero_code.start import on_import
from lightning_hangcheck.model.rehearsal import VARIABLE, Part

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

INSTRUMENTS: tuple[tuple[str, Callable[[Rehearsal, ModuleType], None]], ...] = (
    ("torch.utils.data.dataloader", scenes.instrument_data),
    ("torch.utils.data._utils.fetch", scenes.instrument_fetching),
    ("torch.nn.functional", scenes.instrument_losses),
    ("torch.nn.modules.module", scenes.instrument_modules),
    ("torch.nn.modules.batchnorm", on_cpus.instrument_sync_batchnorm),
    ("torch.nn.parallel.distributed", on_cpus.instrument_ddp),
    ("torch.optim.optimizer", scenes.instrument_steps),
    ("torch.serialization", scenes.instrument_saving),
    ("safetensors.torch", scenes.instrument_saving),
    ("torch.cuda", on_cpus.instrument_cuda),
    ("torch", on_cpus.instrument_devices),
    ("torch.distributed.distributed_c10d", on_cpus.instrument_groups),
    ("transformers.training_args", on_cpus.instrument_arguments),
    ("FABRIC.fabric", on_cpus.instrument_fabric),
    ("LIGHTNING.trainer.trainer", on_cpus.instrument_trainer),
    ("LIGHTNING.callbacks.model_checkpoint", on_cpus.instrument_checkpoints),
    ("LIGHTNING.callbacks.early_stopping", scenes.instrument_stopping),
)


def begin() -> None:
    """Take part in the rehearsal that the environment names; nothing of ours raises."""
    try:
        rehearsal = Rehearsal(msgspec.json.decode(os.environ[VARIABLE], type=Part))
    except (KeyError, msgspec.MsgspecError) as error:
        log.once("rehearsal", f"this rank takes no part in the rehearsal ({error})")
        return
    for module, instrument in INSTRUMENTS:
        on_import(module, partial(instrument, rehearsal))
    tell_exceptions(rehearsal)
    atexit.register(attempt, "leaving", stay_connected, rehearsal)
