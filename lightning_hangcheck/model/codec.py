"""Encodes and decodes facts; each decoder is built once and used by one thread at a time."""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar, overload

import msgspec

from lightning_hangcheck.text.shown import visible_json

Fact = TypeVar("Fact")
_lock = threading.RLock()
_of_json: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_of_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _unlock_in_child() -> None:
    """Another thread may have held the lock at the fork; nobody would free it in the child."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)


@overload
def json_decoder(kind: type[Fact], *, strict: bool = True) -> msgspec.json.Decoder[Fact]: ...
@overload
def json_decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...  # noqa: ANN401
def json_decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return the decoder of JSON for a type; the first thread that asks builds it."""
    if (kind, strict) not in _of_json:
        with _lock:
            _of_json.setdefault((kind, strict), msgspec.json.Decoder(kind, strict=strict))
    return _of_json[kind, strict]


@overload
def msgpack_decoder(kind: type[Fact]) -> msgspec.msgpack.Decoder[Fact]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...  # noqa: ANN401
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of msgpack for a type; the first thread that asks builds it."""
    if kind not in _of_msgpack:
        with _lock:
            _of_msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return _of_msgpack[kind]


class _Versioned(msgspec.Struct):
    schema_version: int = 1


def version_of(data: bytes) -> int:
    """Read the schema version of a file's JSON; 1 if it names none."""
    return json_decoder(_Versioned).decode(data).schema_version


def encode(fact: object) -> bytes:
    """Encode a fact as one line of JSON, without a newline.

    Names of files, processes and threads may not be UTF-8: such bytes become escapes.
    """
    try:
        return msgspec.json.encode(fact)
    except UnicodeEncodeError:
        return msgspec.json.encode(_as_text(msgspec.to_builtins(fact, str_keys=True)))


def encode_packed(fact: object) -> bytes:
    """Encode a fact as msgpack, with names as in `encode`."""
    try:
        return msgspec.msgpack.encode(fact)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(fact, builtin_types=(bytes,))
        return msgspec.msgpack.encode(_as_text(plain))


def _as_text(value: Any) -> Any:  # noqa: ANN401 - whatever `to_builtins` makes of a fact
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_as_text(key): _as_text(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_as_text(inner) for inner in value]
    return value


MOST_INDENTED = 256_000
"""Bytes above which a verdict is written without indentation."""


def encode_for_file(fact: msgspec.Struct) -> bytes:
    """Encode a fact as indented JSON, or as one line if the file would be too long."""
    indented = encode_pretty(fact)
    return indented if len(indented) <= MOST_INDENTED else visible_json(encode(fact)) + b"\n"


def encode_pretty(fact: msgspec.Struct) -> bytes:
    """Encode a fact as indented JSON that ends in a newline, for people to open or print."""
    return visible_json(msgspec.json.format(encode(fact), indent=2)) + b"\n"


def verdict_schema() -> dict[str, Any]:
    """Return the JSON Schema of verdict.json, generated from the structs."""
    # imported here, as ranks never need it
    from inspect import cleandoc

    from lightning_hangcheck.model.verdict import Verdict

    (schema,), definitions = msgspec.json.schema_components(
        (Verdict,), ref_template="#/$defs/{name}"
    )
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = cleandoc(definition["description"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lightning-hangcheck verdict.json",
        **schema,
        "$defs": definitions,
    }
