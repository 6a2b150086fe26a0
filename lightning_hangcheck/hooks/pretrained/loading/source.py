"""Where a model or tokenizer will come from: a folder, the cache of the hub, or the hub itself.

With it the files that hold a model's weights, found as transformers finds them.
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

# in the order of preference of transformers' from_pretrained
_SINGLE = ("model.safetensors", "pytorch_model.bin")
_INDEX = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# one of these is in the cache if anything of a model or tokenizer is
_MARKS = ("config.json", "tokenizer_config.json")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is known before anything is loaded.

    Attributes:
        name: As the user gave it.
        kind: ``hub`` also where the hub is the only place left to ask.
        offline: The hub will not be asked.
        folder: Where its files are; None if they are not here.
        weight_files: Empty for a tokenizer, and where nothing is here.
        file_of_weight: File name of each weight, if an index says so.
        has_generation_config: ``generation_config.json`` is there.
    """

    name: str
    kind: Literal["folder", "cache", "hub"]
    offline: bool
    folder: str | None = None
    weight_files: tuple[WeightFile, ...] = ()
    file_of_weight: dict[str, str] = {}
    has_generation_config: bool = False

    @property
    def size(self) -> int:
        """Bytes of all weight files."""
        return sum(file.size for file in self.weight_files)


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


def find_source(name: str, named: Mapping[str, Any]) -> Source:
    """Find out where ``from_pretrained`` will read from; asks no network.

    Args:
        name: A folder or a name of the hub.
        named: Keyword arguments of ``from_pretrained``.

    Raises:
        OSError: A file cannot be looked at.
        msgspec.DecodeError: The index of the weights is damaged.
    """
    offline = bool(named.get("local_files_only")) or _is_offline()
    is_folder = Path(name).is_dir()
    folder = Path(name) if is_folder else _cached_folder(name, named)
    if folder is None:
        return Source(name=name, kind="hub", offline=offline)
    below = folder / (named.get("subfolder") or "")
    files, file_of_weight = find_weights(below, named.get("variant"))
    return Source(
        name=name,
        kind="folder" if is_folder else "cache",
        offline=offline,
        folder=str(below),
        weight_files=files,
        file_of_weight=file_of_weight,
        has_generation_config=(below / "generation_config.json").exists(),
    )


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


class _Index(msgspec.Struct):
    """What is used of a ``.index.json``."""

    weight_map: dict[str, str]


def _look(path: Path) -> WeightFile:
    state = path.stat()
    return WeightFile(str(path), state.st_size if stat.S_ISREG(state.st_mode) else 0)


def _with_variant(name: str, variant: str | None) -> str:
    if not variant:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{variant}.{ending}"


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached_folder(name: str, named: Mapping[str, Any]) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    for mark in _MARKS:
        try:
            found = try_to_load_from_cache(
                name, mark, cache_dir=named.get("cache_dir"), revision=named.get("revision")
            )
        except ValueError:  # no name that the hub could have, such as a path of three parts
            return None
        if isinstance(found, str):
            return Path(found).parent
    return None
