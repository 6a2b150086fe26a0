"""Builds what training needs around the model: hardware, logger, Trainer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current
from reference.slow_disk import SlowDiskIO

if TYPE_CHECKING:
    from pathlib import Path

    from pytorch_lightning.loggers import Logger

    from reference.arguments import Arguments
    from reference.injection import Injection


@dataclass(frozen=True)
class Hardware:
    """What the ranks run on."""

    accelerator: str
    devices: int
    num_nodes: int
    strategy: str


def choose_hardware(devices: int, strategy: str | None) -> Hardware:
    """Use GPUs where there is one for each rank of this node, else the CPU.

    Args:
        devices: Ranks on this node.
        strategy: The one that was asked for; None for DDP as soon as there are two ranks.
    """
    accelerator = "gpu" if torch.cuda.device_count() >= devices else "cpu"
    told = os.environ.get("GROUP_WORLD_SIZE") or os.environ.get("SLURM_NNODES") or "1"
    nodes = int(told)
    if accelerator == "cpu" and devices > 1:
        # ranks that share a machine would otherwise each start a thread for every core
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // devices))
    fitting = "ddp" if devices * nodes > 1 else "auto"
    return Hardware(accelerator, devices, nodes, strategy or fitting)


def create_logger(output_dir: Path, injection: Injection) -> Logger:
    """Create the wandb logger, offline, as a critical section."""
    with hc.section("WandbLogger constructor"):
        online = injection.before_logger()
        return hc.guarded_wandb_logger(
            project="hangcheck-reference", save_dir=str(output_dir), offline=not online
        )


def create_trainer(
    arguments: Arguments,
    hardware: Hardware,
    logger: Logger,
    memory_logging: Callback,
    injection: Injection,
) -> Trainer:
    """Create the Trainer, as a critical section."""
    saving = ModelCheckpoint(every_n_train_steps=arguments.save_every)
    callbacks = [hc.HangCheck(), memory_logging]
    current().say(f"Trainer constructor is called with strategy={hardware.strategy}")
    with hc.section("Trainer constructor"):
        return Trainer(
            accelerator=hardware.accelerator,
            devices=hardware.devices,
            num_nodes=hardware.num_nodes,
            strategy=hardware.strategy,
            max_steps=arguments.max_steps,
            fast_dev_run=arguments.fast_dev_run,
            logger=logger,
            callbacks=callbacks if arguments.fast_dev_run else [*callbacks, saving],
            plugins=[SlowDiskIO(injection)],
            default_root_dir=arguments.output_dir,
            log_every_n_steps=10,
            enable_progress_bar=os.isatty(2),
            enable_model_summary=False,
        )
