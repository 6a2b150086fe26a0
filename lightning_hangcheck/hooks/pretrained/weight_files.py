"""The files that hold a model's weights, found as transformers finds them."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec

# in the order of preference of transformers' from_pretrained
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


class WeightFile(msgspec.Struct, frozen=True):
    """One file of weights.

    Attributes:
        size: Bytes; 0 for what is no regular file, such as a pipe.
    """

    path: str
    size: int

    @property
    def name(self) -> str:
        """Its name without the folder."""
        return Path(self.path).name


class _Index(msgspec.Struct):
    """What is used of a ``.index.json``."""

    weight_map: dict[str, str]


def find_weights(
    folder: Path, variant: str | None = None
) -> tuple[tuple[WeightFile, ...], dict[str, str]]:
    """List a folder's weight files, and say which of them holds which weight.

    Args:
        folder: Of the model.
        variant: As ``from_pretrained`` takes it, for example ``fp16``.

    Returns:
        The files, and the file name of each weight; nothing of either where there is no index.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: An index is no index.
    """
    for single, index in zip(_SINGLE, _INDEX, strict=True):
        one = folder / _with_variant(single, variant)
        if one.exists():
            return (_look(one),), {}
        table = folder / _with_variant(index, variant)
        if table.exists():
            held = msgspec.json.decode(table.read_bytes(), type=_Index).weight_map
            return tuple(_look(folder / name) for name in sorted(set(held.values()))), held
    return (), {}


def _look(path: Path) -> WeightFile:
    state = path.stat()
    return WeightFile(str(path), state.st_size if stat.S_ISREG(state.st_mode) else 0)


def _with_variant(name: str, variant: str | None) -> str:
    if not variant:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{variant}.{ending}"
