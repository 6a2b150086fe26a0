"""Logs how much memory training uses."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pytorch_lightning import Callback

if TYPE_CHECKING:
    from pytorch_lightning import LightningModule, Trainer

MIB = 2**20


class MemoryLoggingCallback(Callback):
    """Logs resident memory, and what CUDA has allocated where it is in use, in MiB.

    Args:
        every_steps: Steps between two readings.
    """

    def __init__(self, every_steps: int = 10) -> None:
        self._every_steps = every_steps

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
    ) -> None:
        """Log rank 0's memory; no rank waits for another here."""
        if trainer.is_global_zero and trainer.logger and batch_idx % self._every_steps == 0:
            trainer.logger.log_metrics(read_memory(), step=trainer.global_step)


def read_memory() -> dict[str, float]:
    """Return resident and CUDA memory of this process in MiB."""
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = {"memory/rss": resident_pages * resource.getpagesize() / MIB}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        memory["memory/cuda_allocated"] = torch.cuda.memory_allocated() / MIB
        memory["memory/cuda_reserved"] = torch.cuda.memory_reserved() / MIB
    return memory
