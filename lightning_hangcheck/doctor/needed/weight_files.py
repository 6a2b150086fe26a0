"""Names and shapes of the tensors in a file of weights, read without loading or running any of it.

A safetensors file says them in its header. A file of torch is a zip archive whose index is a
pickle: every class and function that it names is replaced by one that does nothing, so nothing
that a stranger put there is imported or called.
"""

from __future__ import annotations

import json
import pickle
import zipfile
from typing import TYPE_CHECKING, Any, BinaryIO

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAFE = (".safetensors",)
OF_TORCH = (".bin", ".pt", ".pth", ".ckpt")
ARCHIVE = b"PK\x03\x04"
"""With this torch begins since 1.6; before that it wrote bare pickles, and so do others."""
POINTER = b"version https://git-lfs"
LONGEST_INDEX = 100_000_000
"""Bytes; the limit of the safetensors format for its header, far more than any index takes."""
DEEPEST = 6
"""Folders within folders of a checkpoint: Lightning's optimizer states lie four deep."""
NAMES_OF_A_BASE = (
    "base_model_name_or_path",
    "pretrained_model_name_or_path",
    "model_name_or_path",
    "base_model",
    "backbone",
    "model_name",
)
"""Under these, trainers note which model they began with (peft, transformers, usual scripts)."""


class CannotBeRead(Exception):
    """The file is damaged; the message says how."""


class Shape(tuple[int, ...]):
    """Sides of a tensor; a type of its own, to be told from other tuples of an index."""

    __slots__ = ()

    def __str__(self) -> str:
        return " x ".join(map(str, self)) or "a single number"


class WeightFile(Struct, frozen=True):
    """What a file of weights holds.

    Attributes:
        shapes: Of its tensors by name; names of nested dictionaries are joined by dots.
        base: The model that it was trained on, as its trainer noted it there; empty if unknown.
    """

    shapes: dict[str, Shape]
    base: str = ""


def read_weight_file(path: Path) -> WeightFile:
    """Read what a file of weights holds: nothing, where it is of a format that is not known here.

    Raises:
        CannotBeRead: It is damaged, or no such file.
        OSError: It may not be read.
    """
    with path.open("rb") as file:
        beginning = file.read(len(POINTER))
    if not beginning:
        raise CannotBeRead("it is empty")
    if beginning == POINTER:
        raise CannotBeRead("it is a pointer of git-lfs to the real file: git lfs pull")
    if path.suffix in SAFE:
        return WeightFile(_safetensors(path))
    if not beginning.startswith(ARCHIVE):
        return WeightFile({})
    content = _index_of_torch(path)
    return WeightFile(dict(_tensors(content, (), set())), _base(content))


def _safetensors(path: Path) -> dict[str, Shape]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LONGEST_INDEX:
            raise CannotBeRead("it is no safetensors file")
        text = file.read(length)
    try:
        header = json.loads(text)
        entries = {name: one for name, one in header.items() if name != "__metadata__"}
        shapes = {name: Shape(map(int, one["shape"])) for name, one in entries.items()}
        end = max((int(one["data_offsets"][1]) for one in entries.values()), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CannotBeRead("its header is damaged or cut off") from error
    missing = 8 + length + end - path.stat().st_size
    if missing > 0:
        raise CannotBeRead(f"it is cut off: {missing} bytes are missing")
    return shapes


def _index_of_torch(path: Path) -> object:
    try:
        with zipfile.ZipFile(path) as archive:
            return _inert_index(archive)
    except zipfile.BadZipFile as error:
        raise CannotBeRead("it is cut off: the end of the archive is missing") from error
    except CannotBeRead:
        raise
    except Exception as error:  # a pickle that is not torch's own may raise anything
        raise CannotBeRead(f"its index cannot be read ({type(error).__name__})") from error


def _inert_index(archive: zipfile.ZipFile) -> object:
    found = [one for one in archive.infolist() if one.filename.endswith("data.pkl")]
    if not found or found[0].file_size > LONGEST_INDEX:
        raise CannotBeRead("it is an archive without an index of torch")
    with archive.open(found[0]) as file:
        return _Inert(file).load()


class _Nothing(dict[Any, Any]):
    """Stands for whatever an index names: takes any arguments and state, and does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __call__(self, *_: object, **__: object) -> _Nothing:
        return self

    def __setstate__(self, state: object) -> None:
        """Drop the state: attributes of an object hold no weights."""

    def append(self, _: object) -> None:
        """Take an item of what claims to be a list."""

    def extend(self, _: object) -> None:
        """Take items of what claims to be a list."""

    __hash__ = object.__hash__  # type: ignore[assignment] # it may stand where a key is wanted


class _Inert(pickle.Unpickler):
    """Reads a pickle with nothing in the place of every class and function, but for shapes."""

    def __init__(self, file: BinaryIO | Any) -> None:  # noqa: ANN401 - zipfile's own kind of file
        super().__init__(file)

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - any class may be meant
        return _KNOWN.get((module, name), _Nothing)

    def persistent_load(self, _: object) -> object:
        return None


def _from_storage(_: object, __: object, size: Any, *___: object) -> Shape:  # noqa: ANN401 - torch's
    return Shape(size)


def _without_storage(_: object, size: Any, *__: object) -> Shape:  # noqa: ANN401 - torch's
    return Shape(size)


def _parameter(data: object, *_: object) -> object:
    return data


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): _from_storage,
    ("torch._utils", "_rebuild_tensor_v2"): _from_storage,
    ("torch._utils", "_rebuild_tensor_v3"): _from_storage,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _without_storage,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch", "Size"): tuple,
}
"""Ours, in the place of the functions by which torch rebuilds tensors (torch/_utils.py)."""


def _tensors(
    content: object, within: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, Shape]]:
    """Walk through dictionaries and lists; each is walked once, however often it is named."""
    if isinstance(content, Shape):
        yield ".".join(within), content
    if id(content) in seen or len(within) >= DEEPEST:
        return
    if isinstance(content, dict):
        seen.add(id(content))
        for name, one in content.items():
            yield from _tensors(one, (*within, str(name)), seen)
    elif isinstance(content, list):
        seen.add(id(content))
        for index, one in enumerate(content):
            yield from _tensors(one, (*within, str(index)), seen)


def _base(content: object) -> str:
    """Find the note of a trainer, at the top or one below it; a name of the hub has a slash."""
    if not isinstance(content, dict):
        return ""
    notes = [content, *(one for one in content.values() if isinstance(one, dict))]
    named = (one.get(name) for name in NAMES_OF_A_BASE for one in notes)
    return next((str(one) for one in named if isinstance(one, str) and "/" in one), "")
