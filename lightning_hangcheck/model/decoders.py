"""Decoders of facts, each built once and by one thread at a time.

msgspec (0.22) notes what it knows of a struct before it knows all of it: a second thread that
decodes the same struct for the first time at that moment reads a null pointer, and the process is
gone (``StructInfo_Convert`` in _core.c). A decoder that is there is safe for any thread.
"""

from __future__ import annotations

import os
import threading
from typing import Any, TypeVar, overload

import msgspec

Fact = TypeVar("Fact")
_lock = threading.RLock()
_of_json: dict[tuple[Any, bool], msgspec.json.Decoder[Any]] = {}
_of_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def _unlock_in_child() -> None:
    """Another thread may have held the lock at the fork; in the child nobody would free it."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_in_child)


@overload
def json_decoder(kind: type[Fact], *, strict: bool = True) -> msgspec.json.Decoder[Fact]: ...
@overload
def json_decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]: ...  # noqa: ANN401
def json_decoder(kind: Any, *, strict: bool = True) -> msgspec.json.Decoder[Any]:
    """Return the decoder of JSON for a type, whichever thread asks for it first.

    Args:
        kind: A struct, or a list, tuple or union of such.
        strict: As msgspec has it.
    """
    found = _of_json.get((kind, strict))
    if found is None:
        with _lock:
            found = msgspec.json.Decoder(kind, strict=strict)
            found = _of_json.setdefault((kind, strict), found)
    return found


@overload
def msgpack_decoder(kind: type[Fact]) -> msgspec.msgpack.Decoder[Fact]: ...
@overload
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]: ...  # noqa: ANN401
def msgpack_decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Return the decoder of msgpack for a type, whichever thread asks for it first.

    Args:
        kind: As for `json_decoder`.
    """
    found = _of_msgpack.get(kind)
    if found is None:
        with _lock:
            found = _of_msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return found
