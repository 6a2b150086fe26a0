"""The one place where bytes become facts, with a sentence where they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.owned_file import UnusableFile
from lightning_hangcheck.model.decoders import json_decoder

if TYPE_CHECKING:
    from pathlib import Path

Fact = TypeVar("Fact", bound=msgspec.Struct)
SCHEMA_VERSION = 1


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
        version = json_decoder(_Versioned).decode(data).schema_version
        if version != SCHEMA_VERSION:
            raise UnreadableRun(
                f"{source} has schema_version {version}; this version reads {SCHEMA_VERSION}",
                "install the lightning-hangcheck that wrote it, or a newer one",
            )
        return json_decoder(kind).decode(data)
    except msgspec.MsgspecError as error:
        raise UnreadableRun(
            f"{source} cannot be read: {error}", "name another run folder, or run again"
        ) from error


def unreadable(path: Path, error: OSError) -> UnreadableRun:
    """Say why a file of a run cannot be read, and the way out."""
    wrong = isinstance(error, (UnusableFile, IsADirectoryError))
    remedy = "remove it" if wrong else "read it as the user who made it"
    return UnreadableRun(
        f"{path} cannot be read ({error.strerror})", f"{remedy}, or name another run folder"
    )


class _Versioned(msgspec.Struct):
    schema_version: int = SCHEMA_VERSION
