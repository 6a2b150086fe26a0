"""What torch says when a GPU has no room: how much was wanted, free, in use, and kept unused.

c10/cuda/CUDACachingAllocator.cpp, of torch 1.8 and of 2.1 to 2.13. Last words may be cut, so each
size counts by itself; without any of them the type alone still tells what happened.
"""

from __future__ import annotations

import re

from msgspec import Struct

TYPE = "OutOfMemoryError"
"""torch.OutOfMemoryError, and torch.cuda.OutOfMemoryError before 2.5; Python's is MemoryError."""
_SIZE = r"(?P<size>\d+(?:\.\d+)?) (?P<unit>bytes|KiB|MiB|GiB)"
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_WANTED = (re.compile(rf"Tried to allocate {_SIZE}"),)
_TOTAL = (re.compile(rf"total capacity of {_SIZE}"), re.compile(rf"{_SIZE} total capacity"))
_FREE = (re.compile(rf"of which {_SIZE} is free"), re.compile(rf"{_SIZE} free"))
_IN_USE = (
    re.compile(rf"{_SIZE} is allocated by PyTorch"),
    re.compile(rf"{_SIZE} already allocated"),
)
_UNUSED = (
    re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    re.compile(rf"allocated by PyTorch, and {_SIZE} is"),  # cut: last words have 300 characters
)


class GpuOutOfMemory(Struct, frozen=True, kw_only=True):
    """Bytes as torch told them; None where its words are cut before them.

    Attributes:
        wanted: By the allocation that failed.
        total: Of the GPU.
        free: On it, for anybody.
        in_use: By tensors of this process.
        unused: Kept by its allocator, in pieces of which none was large enough.
    """

    wanted: int | None = None
    total: int | None = None
    free: int | None = None
    in_use: int | None = None
    unused: int | None = None

    @property
    def missing(self) -> int | None:
        """What would have to be freed for that allocation."""
        if self.wanted is None or self.free is None:
            return None
        return max(0, self.wanted - self.free)

    @property
    def in_pieces(self) -> bool:
        """Whether what the allocator keeps unused would have been enough in one piece."""
        missing = self.missing
        return missing is not None and self.unused is not None and self.unused >= missing > 0

    @property
    def words(self) -> str:
        """For example ``2.00 GiB more were wanted, 1.12 GiB of 23.65 GiB were free``."""
        parts = [
            f"{in_binary(self.wanted)} more were wanted" if self.wanted is not None else "",
            _of(self.free, self.total),
            f"{in_binary(self.missing)} were missing" if self.missing else "",
            f"{in_binary(self.in_use)} were in tensors" if self.in_use is not None else "",
            f"{in_binary(self.unused)} were kept unused" if self.unused is not None else "",
        ]
        return ", ".join(filter(None, parts))


def gpu_out_of_memory(last_words: str) -> GpuOutOfMemory | None:
    """Read a rank's last words; None where they tell of something else.

    Args:
        last_words: Type, message and place of its exception.
    """
    if not last_words.startswith(TYPE):
        return None
    return GpuOutOfMemory(
        wanted=_size(_WANTED, last_words),
        total=_size(_TOTAL, last_words),
        free=_size(_FREE, last_words),
        in_use=_size(_IN_USE, last_words),
        unused=_size(_UNUSED, last_words),
    )


def in_binary(size: int) -> str:
    """Write a number of bytes as torch does, for whoever compares it with torch's own words."""
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.2f} MiB"


def _size(patterns: tuple[re.Pattern[str], ...], text: str) -> int | None:
    found = next((match for one in patterns if (match := one.search(text))), None)
    return None if found is None else int(float(found["size"]) * _UNITS[found["unit"]])


def _of(free: int | None, total: int | None) -> str:
    if free is None:
        return ""
    whole = f" of {in_binary(total)}" if total is not None else ""
    return f"{in_binary(free)}{whole} were free"
