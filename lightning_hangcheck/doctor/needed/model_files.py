"""A model or checkpoint as its files tell it: sizes, tensors, vocabulary, and what it began with.

Nothing is loaded. What is wrong with the files themselves (a part that is missing, cut off, or of
another save) is kept as a complaint, for the check to say.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.doctor.needed.weight_files import (
    NAMES_OF_A_BASE,
    OF_TORCH,
    SAFE,
    CannotBeRead,
    Shape,
    read_weight_file,
)
from lightning_hangcheck.doctor.surroundings.hugging_face import cache_folder
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import (
    CONFIG_NAME,
    Fields,
    read_config,
    read_fields,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

ADAPTER = "adapter_config.json"
TOKENIZER = "tokenizer.json"
INDEX, SAFE_INDEX = "*.index.json", "*.safetensors.index.json"
LONGEST_JSON = 200_000_000
"""Bytes; the largest tokenizer.json known has 33 million."""


class Vocabulary(Struct, frozen=True):
    """The tokens of a tokenizer.

    Attributes:
        tokens: How many.
        rows: That an embedding needs for them: one more than the largest number of a token.
        digest: Of all tokens with their numbers.
    """

    tokens: int
    rows: int
    digest: str


class ModelFiles(Struct, frozen=True, kw_only=True):
    """What the files of a model or checkpoint say.

    Attributes:
        fields: Of its config.json; None where there is none, or none of a text model.
        shapes: Of all tensors by name.
        vocabulary: None where there is no tokenizer.json.
        base: The model that it was trained on, as noted there; empty if unknown.
        files: How many files of weights were read.
        complaints: What is wrong with the files, each in words.
    """

    fields: Fields | None = None
    shapes: dict[str, Shape] = {}
    vocabulary: Vocabulary | None = None
    base: str = ""
    files: int = 0
    complaints: tuple[str, ...] = ()


def find_model(name: str, environment: Mapping[str, str]) -> Path:
    """Return a file or folder, else the newest snapshot of that name in the hub's cache."""
    path = Path(name).expanduser()
    if path.exists() or name.startswith(("/", ".", "~")):
        return path
    kept = cache_folder(environment) / f"models--{name.replace('/', '--')}" / "snapshots"
    snapshots = sorted(kept.glob("*"), key=lambda one: one.stat().st_mtime)
    return snapshots[-1] if snapshots else path


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
    files = _weight_files(path)
    safe = any(one.suffix in SAFE for one in files)
    named, complaints = _indexed(path, safe=safe)
    found = _weights(files, complaints)
    complaints = list(found.complaints)
    # what is in files of torch before 1.6 is not known
    missing = [name for name in named if safe and name not in found.shapes]
    if missing and not complaints:
        which = f"{len(missing)} tensors, {missing[0]} for one"
        complaints.append(f"an index names {which}, that no file here holds")
    return ModelFiles(
        fields=_fields(path / CONFIG_NAME),
        shapes=found.shapes,
        vocabulary=_vocabulary(path / TOKENIZER),
        base=_noted(path / ADAPTER) or found.base,
        files=found.files,
        complaints=tuple(complaints),
    )


def _weight_files(folder: Path) -> list[Path]:
    """As from_pretrained takes them: safetensors where there are any."""
    files = sorted(one for one in folder.iterdir() if one.suffix in SAFE + OF_TORCH)
    return [one for one in files if one.suffix in SAFE] or files


def _weights(files: list[Path], complaints: list[str]) -> ModelFiles:
    shapes: dict[str, Shape] = {}
    base = ""
    for file in files:
        try:
            read = read_weight_file(file)
        except CannotBeRead as error:
            complaints.append(f"{file.name}: {error}")
            continue
        shapes |= read.shapes
        base = base or read.base
    return ModelFiles(shapes=shapes, base=base, files=len(files), complaints=tuple(complaints))


def _indexed(folder: Path, *, safe: bool) -> tuple[list[str], list[str]]:
    """Names of the tensors that an index names, and a complaint for each part that is missing.

    Args:
        folder: Of the model.
        safe: Only what names safetensors files counts, as these are what is loaded.
    """
    named: dict[str, str] = {}
    for index in folder.glob(SAFE_INDEX if safe else INDEX):
        content = _json(index).get("weight_map")
        named |= content if isinstance(content, dict) else {}
    parts = sorted({part for part in named.values() if not (folder / part).exists()})
    return list(named), [f"{part} is missing, which an index names" for part in parts]


def _fields(config: Path) -> Fields | None:
    """The sizes of a model; None where this is no model of text, which is nobody's fault."""
    if not config.exists():
        return None
    try:
        return read_fields(read_config(config))
    except BadUsage:
        return None


def _vocabulary(tokenizer: Path) -> Vocabulary | None:
    """Read ``tokenizer.json`` of the tokenizers library: a model's vocabulary, and added tokens."""
    content = _json(tokenizer)
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    numbers: dict[str, int] = {}
    if isinstance(vocabulary, dict):
        numbers = {str(token): int(number) for token, number in vocabulary.items()}
    elif isinstance(vocabulary, list):
        numbers = {str(pair[0]): number for number, pair in enumerate(vocabulary)}
    added = content.get("added_tokens")
    for one in added if isinstance(added, list) else ():
        numbers[str(one["content"])] = int(one["id"])
    if not numbers:
        return None
    digest = hashlib.sha256(repr(sorted(numbers.items())).encode()).hexdigest()
    return Vocabulary(len(numbers), max(numbers.values()) + 1, digest)


def _noted(adapter: Path) -> str:
    content = _json(adapter)
    return next((str(content[name]) for name in NAMES_OF_A_BASE if content.get(name)), "")


def _json(file: Path) -> dict[str, object]:
    """An empty one where there is no such file, or it is no JSON object."""
    try:
        if file.stat().st_size > LONGEST_JSON:
            return {}
        content = json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
