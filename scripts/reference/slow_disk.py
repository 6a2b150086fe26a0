"""Saves checkpoints as a slow disk would."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning_fabric.plugins import TorchCheckpointIO

if TYPE_CHECKING:
    from reference.injection import Injection

SAVING_S = 15.0
"""Longer than any pace, shorter than any patience: a healthy save."""
WRITES = 60


class SlowDiskIO(TorchCheckpointIO):
    """Writes the checkpoint in many small, synced pieces, spread over ``SAVING_S`` seconds."""

    def __init__(self, injection: Injection) -> None:
        super().__init__()
        self._injection = injection

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: object = None
    ) -> None:
        """Save one checkpoint, slowly if the fault says so."""
        if self._injection.before_save(checkpoint["global_step"]):
            _write_slowly(checkpoint, Path(path))
        else:
            super().save_checkpoint(checkpoint, path, storage_options)


def _write_slowly(checkpoint: dict[str, Any], path: Path) -> None:
    serialized = io.BytesIO()
    torch.save(checkpoint, serialized)
    data = serialized.getbuffer()
    piece = -(-len(data) // WRITES)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, len(data), piece):
            file.write(data[start : start + piece])
            file.flush()
            os.fsync(file.fileno())
            time.sleep(SAVING_S / WRITES)
