"""How far a load has come: a beat for each weight, a line for each file of weights."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.amounts import in_words

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from lightning_hangcheck.hooks.pretrained.source import Source

SILENCE_S = 10.0  # a file that takes longer gets a line in between


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
        size = in_words(self._files[name].size)
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
