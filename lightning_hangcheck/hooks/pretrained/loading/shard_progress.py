"""How far a load has come: a beat for each weight, a line for each file of weights.

How long it may take is told before, from a few samples of how fast the storage delivers the files.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.text.amounts import bytes_in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from lightning_hangcheck.hooks.pretrained.loading.source import Source, WeightFile

SILENCE_S = 10.0  # a file that takes longer gets a line in between
SAMPLES = 4
SAMPLE_SIZE = 1 << 20  # bytes: long enough that opening the file does not count, read in 10 ms
SMALLEST_MODEL = 64 << 20  # bytes; below, loading takes no time worth an estimate


class ShardProgress:
    """Hears of one load, and says how far it is.

    Args:
        source: What is loaded.
        say: Prints a line.
        beat: Says that the rank advanced.
        clock: Seconds.
    """

    def __init__(
        self,
        source: Source,
        say: Callable[[str], None],
        beat: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._beat, self._clock = say, beat, clock
        self._files = {file.name: file for file in source.weight_files}
        self._file_of_weight = source.file_of_weight
        self._weights_left = Counter(source.file_of_weight.values())
        self._opened: set[str] = set()
        self._loaded: set[str] = set()
        self._weights = 0
        self._spoke_at = self._loaded_at = clock()

    def opening(self, path: str) -> None:
        """A weight file will be opened next."""
        self._beat()
        name = Path(path).name
        if name in self._files and name not in self._opened:
            self._opened.add(name)
            self._tell(f"opening weight file {self._place(name)}")

    def loaded_file(self, path: str) -> None:
        """All weights of this file are where they belong."""
        self._beat()
        name = Path(path).name
        if name not in self._files or name in self._loaded:
            return
        self._loaded.add(name)
        now = self._clock()
        size = bytes_in_words(self._files[name].size)
        self._tell(f"loaded weight file {self._place(name)} ({size}, {now - self._loaded_at:.3f}s)")
        self._loaded_at = now

    def loaded_weights(self, names: Iterable[str]) -> None:
        """These weights, by their names in the files, are where they belong."""
        self._beat()
        for name in names:
            self._weights += 1
            file = self._file_of_weight.get(name)
            if file is not None:
                self._weights_left[file] -= 1
                if not self._weights_left[file]:
                    self.loaded_file(file)
        if self._clock() - self._spoke_at > SILENCE_S:
            self._tell(f"{self._weights} weights loaded so far")

    def ended(self) -> None:
        """Nothing more comes: files with weights that the model does not have are done too."""
        for name in self._files:
            self.loaded_file(name)

    def _place(self, name: str) -> str:
        number = list(self._files).index(name) + 1
        return f"{number}/{len(self._files)} {name}"

    def _tell(self, text: str) -> None:
        self._spoke_at = self._clock()
        self._say(text)


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
