"""A model or checkpoint as its files tell it: sizes, tensors, vocabulary, and what it began with.

Nothing is loaded or run. safetensors reads the headers of its files. A file of torch is a zip
archive whose index is a pickle: every class and function that it names is replaced by one that does
nothing, so nothing that a stranger put there is imported or called. What is wrong with the files (a
part that is missing, cut off, or of another save) is a complaint, for the check to say.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.doctor.environment_checks import cache_folder
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import CONFIG_NAME, Fields, read_config, read_fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SAFE = ".safetensors"
OF_TORCH = (".bin", ".pt", ".pth", ".ckpt")
ARCHIVE = b"PK\x03\x04"
"""With this torch begins since 1.6; before that it wrote bare pickles, and so do others."""
POINTER = b"version https://git-lfs"
LONGEST_INDEX = 100_000_000
"""Bytes of a pickle, far more than any index takes."""
LONGEST_JSON = 200_000_000
"""Bytes; the largest tokenizer.json known has 33 million."""
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
    """A file of weights is damaged, or cannot be read here; the message says how."""


class Shape(tuple[int, ...]):
    """Sides of a tensor; a type of its own, to be told from other tuples of an index."""

    __slots__ = ()

    def __str__(self) -> str:
        return " x ".join(map(str, self)) or "a single number"


class ModelFiles(Struct, frozen=True, kw_only=True):
    """What the files of a model or checkpoint say.

    Attributes:
        fields: Of its config.json; None where there is none, or none of a text model.
        shapes: Of all tensors by name; names of nested dictionaries are joined by dots.
        tokens: In its tokenizer.json, 0 where there is none; ``digest`` is of all of them.
        rows: That an embedding needs for them: one more than the largest number of a token.
        base: The model that it was trained on, as noted there; empty if unknown.
    """

    fields: Fields | None = None
    shapes: dict[str, Shape] = {}
    tokens: int = 0
    digest: str = ""
    rows: int = 0
    base: str = ""
    files: int = 0
    complaints: tuple[str, ...] = ()
    name: str = ""


def find_model(name: str, environment: Mapping[str, str]) -> Path:
    """Return a file or folder, else the newest snapshot of that name in the hub's cache."""
    path = Path(name).expanduser()
    if path.exists() or name.startswith(("/", ".", "~")):
        return path
    kept = cache_folder(environment) / f"models--{name.replace('/', '--')}" / "snapshots"
    return max(kept.glob("*"), key=lambda one: one.stat().st_mtime, default=path)


def read_model_files(path: Path) -> ModelFiles:
    """Read a folder of a model, a file of weights, or a config.json.

    Raises:
        FileNotFoundError: There is nothing of that name.
        OSError: It may not be read.
    """
    if not path.is_dir():
        path.stat()
        if path.suffix == ".json":
            return ModelFiles(fields=_fields(path))
        return _weights([path], [])
    files = sorted(one for one in path.iterdir() if one.suffix in (SAFE, *OF_TORCH))
    # as from_pretrained takes them: safetensors where there are any
    safe = [one for one in files if one.suffix == SAFE]
    index: dict[str, str] = {}
    for file in path.glob(f"*{SAFE}.index.json" if safe else "*.index.json"):
        content = _json(file).get("weight_map")
        index |= content if isinstance(content, dict) else {}
    parts = sorted({part for part in index.values() if not (path / part).exists()})
    found = _weights(safe or files, [f"{part} is missing, which an index names" for part in parts])
    # what is in files of torch before 1.6 is not known
    missing = [name for name in index if safe and name not in found.shapes]
    complaints = found.complaints
    if missing and not complaints:
        which = f"{len(missing)} tensors, {missing[0]} for one"
        complaints = (f"an index names {which}, that no file here holds",)
    adapter = _json(path / "adapter_config.json")
    noted = next((str(adapter[name]) for name in NAMES_OF_A_BASE if adapter.get(name)), "")
    # the vocabulary and the added tokens, as the tokenizers library keeps them
    tokenizer = _json(path / "tokenizer.json")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    numbers: dict[str, int] = {}
    if isinstance(vocabulary, dict):
        numbers = {str(token): int(number) for token, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        numbers = {str(pair[0]): number for number, pair in enumerate(vocabulary)}
    numbers |= {str(one["content"]): int(one["id"]) for one in tokenizer.get("added_tokens") or ()}
    return replace(
        found,
        fields=_fields(path / CONFIG_NAME),
        tokens=len(numbers),
        digest=hashlib.sha256(repr(sorted(numbers.items())).encode()).hexdigest(),
        rows=max(numbers.values(), default=-1) + 1,
        base=noted or found.base,
        complaints=complaints,
    )


def _weights(files: list[Path], complaints: list[str]) -> ModelFiles:
    shapes: dict[str, Shape] = {}
    base = ""
    for file in files:
        try:
            more, noted = read_weight_file(file)
        except CannotBeRead as error:
            complaints.append(f"{file.name}: {error}")
            continue
        shapes |= more
        base = base or noted
    return ModelFiles(shapes=shapes, base=base, files=len(files), complaints=tuple(complaints))


def _fields(config: Path) -> Fields | None:
    """The sizes of a model; None where this is no model of text, which is nobody's fault."""
    try:
        return read_fields(read_config(config)) if config.exists() else None
    except BadUsage:
        return None


def _json(file: Path) -> dict[str, Any]:
    """An empty one where there is no such file, or it is no JSON object."""
    try:
        if file.stat().st_size > LONGEST_JSON:
            return {}
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def read_weight_file(path: Path) -> tuple[dict[str, Shape], str]:
    """Read the shapes in a file of weights, and what it was trained on, if its trainer noted that.

    Nothing is found in a format that is not known here.

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
    if path.suffix == SAFE:
        try:
            from safetensors import SafetensorError, safe_open
        except ImportError as error:
            raise CannotBeRead("it cannot be read here: pip install safetensors numpy") from error
        try:
            with safe_open(path, framework="numpy") as tensors:
                names = tensors.keys()
                return {name: Shape(tensors.get_slice(name).get_shape()) for name in names}, ""
        except SafetensorError as error:
            said = f"it is cut off, damaged, or no safetensors file ({error})"
            raise CannotBeRead(said) from error
    if not beginning.startswith(ARCHIVE):
        return {}, ""
    try:
        with zipfile.ZipFile(path) as archive:
            found = [one for one in archive.infolist() if one.filename.endswith("data.pkl")]
            if found and found[0].file_size <= LONGEST_INDEX:
                with archive.open(found[0]) as file:
                    content = _Inert(file).load()
                # the note of a trainer, at the top or one below it; a name of the hub has a slash
                notes = [content, *content.values()] if isinstance(content, dict) else []
                pairs = ((one, name) for name in NAMES_OF_A_BASE for one in notes)
                named = (one.get(name) for one, name in pairs if isinstance(one, dict))
                base = (one for one in named if isinstance(one, str) and "/" in one)
                return dict(_tensors(content, (), set())), next(base, "")
    except zipfile.BadZipFile as error:
        raise CannotBeRead("it is cut off: the end of the archive is missing") from error
    except Exception as error:  # a pickle that is not torch's own may raise anything
        raise CannotBeRead(f"its index cannot be read ({type(error).__name__})") from error
    raise CannotBeRead("it is an archive without an index of torch")


class _Nothing(dict[Any, Any]):
    """Stands for whatever an index names: takes any arguments, state and items, does nothing."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def __call__(self, *_: object, **__: object) -> _Nothing:
        return self

    __setstate__ = append = extend = lambda self, _: None
    __hash__ = object.__hash__  # type: ignore[assignment] # it may stand where a key is wanted


class _Inert(pickle.Unpickler):
    """Reads a pickle with nothing in the place of every class and function, but for shapes."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - any class may be meant
        return _KNOWN.get((module, name), _Nothing)

    def persistent_load(self, _: object) -> object:
        return None


_KNOWN: dict[tuple[str, str], Any] = {
    **dict.fromkeys(
        [("torch._utils", f"_rebuild_tensor{version}") for version in ("", "_v2", "_v3")],
        lambda _storage, _offset, size, *_: Shape(size),
    ),
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): lambda _dtype, size, *_: Shape(size),
    ("torch._utils", "_rebuild_parameter"): lambda data, *_: data,
    ("torch._utils", "_rebuild_parameter_with_state"): lambda data, *_: data,
    ("torch", "Size"): tuple,
}
"""Ours, in the place of the functions by which torch rebuilds tensors (torch/_utils.py)."""


def _tensors(
    content: object, within: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[str, Shape]]:
    """Walk through dictionaries and lists; each is walked once, however often it is named."""
    if isinstance(content, Shape):
        yield ".".join(within), content
    elif isinstance(content, dict | list) and id(content) not in seen and len(within) < DEEPEST:
        seen.add(id(content))
        for name, one in content.items() if isinstance(content, dict) else enumerate(content):
            yield from _tensors(one, (*within, str(name)), seen)
