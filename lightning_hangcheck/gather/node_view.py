"""One node's case as another may read it: on another clock. Pure."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

Held = TypeVar("Held", bound=Struct)
SUFFIX = "_ns"


def rebased(fact: Held, shift_ns: int) -> Held:
    """Shift every monotonic time in a fact, and in the facts inside it.

    By the convention of `model`, those are the fields whose names end in ``_ns``; 0 means that
    there is no such time, and stays 0.

    Args:
        fact: Any struct of the model.
        shift_ns: Added to each of them.
    """
    changed = {
        name: _shifted(name, getattr(fact, name), shift_ns) for name in fact.__struct_fields__
    }
    return replace(fact, **changed)


def _shifted(name: str, value: Any, shift_ns: int) -> Any:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, Struct):
        return rebased(value, shift_ns)
    if isinstance(value, tuple):
        return tuple(_shifted("", item, shift_ns) for item in value)
    return value + shift_ns if name.endswith(SUFFIX) and value else value
