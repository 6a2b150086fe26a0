"""The one place where facts become bytes and bytes become facts."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.model.verdict import Verdict

Fact = TypeVar("Fact", bound=msgspec.Struct)
SCHEMA_VERSION = 1


def encode(fact: msgspec.Struct) -> bytes:
    """Encode a fact as one line of JSON, without a newline."""
    return msgspec.json.encode(fact)


def encode_pretty(fact: msgspec.Struct) -> bytes:
    """Encode a fact as indented JSON that ends in a newline, for files that people open."""
    return msgspec.json.format(msgspec.json.encode(fact), indent=2) + b"\n"


def decode(data: bytes, kind: type[Fact], source: str) -> Fact:
    """Decode a fact.

    Args:
        data: JSON.
        kind: The struct to build; unknown fields are ignored so that a newer writer stays readable.
        source: Where the bytes came from, for the error's sentence.

    Raises:
        UnreadableRun: The bytes are no such fact, or are of another schema version.
    """
    try:
        version = msgspec.json.decode(data, type=_Versioned).schema_version
        if version != SCHEMA_VERSION:
            raise UnreadableRun(
                f"{source} has schema_version {version}; this version reads {SCHEMA_VERSION}",
                "install the lightning-hangcheck that wrote it, or a newer one",
            )
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise UnreadableRun(
            f"{source} cannot be read: {error}", "name another run folder, or run again"
        ) from error


class _Versioned(msgspec.Struct):
    schema_version: int = SCHEMA_VERSION


def verdict_schema() -> dict[str, Any]:
    """Return the JSON Schema of verdict.json, generated from the structs."""
    (schema,), definitions = msgspec.json.schema_components(
        (Verdict,), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lightning-hangcheck verdict.json",
        **schema,
        "$defs": definitions,
    }
