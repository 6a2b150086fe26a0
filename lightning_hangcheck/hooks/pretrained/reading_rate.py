"""How fast the storage delivers a model's files: a few samples, read just before loading."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.hooks.pretrained.weight_files import WeightFile

SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: long enough that opening the file does not count, read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; below, loading takes no time worth an estimate


def reading_rate(files: Sequence[WeightFile]) -> float | None:
    """Read a few places of the files, and time it.

    What is in the page cache is read at that speed, by these samples and by loading alike.

    Returns:
        Bytes a second; None where an estimate would tell nothing.

    Raises:
        OSError: A file cannot be read.
    """
    if sum(file.size for file in files) < SMALLEST_MODEL:
        return None
    readable = [file for file in files if file.size >= SAMPLE_SIZE]
    chosen = [readable[number * len(readable) // SAMPLES] for number in range(SAMPLES)]
    started, read = time.perf_counter(), 0
    for number, file in enumerate(chosen):
        read += _read_sample(file, share=(number + 0.5) / SAMPLES)
    return read / (time.perf_counter() - started)


def _read_sample(file: WeightFile, share: float) -> int:
    descriptor = os.open(file.path, os.O_RDONLY)
    try:
        place = int((file.size - SAMPLE_SIZE) * share)
        return len(os.pread(descriptor, SAMPLE_SIZE, place))
    finally:
        os.close(descriptor)
