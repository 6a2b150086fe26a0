"""One node's case as another may read it: on another clock. Pure."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    names = _timed(type(fact))
    if not names:
        return fact
    changed = {name: _shifted(name, getattr(fact, name), shift_ns) for name in names}
    return replace(fact, **changed)


def _shifted(name: str, value: Any, shift_ns: int) -> Any:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, Struct):
        return rebased(value, shift_ns)
    if isinstance(value, tuple):
        return tuple(_shifted("", item, shift_ns) for item in value)
    return value + shift_ns if name.endswith(SUFFIX) and value else value


@cache
def _timed(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields that are times, or in whose facts one may be; most facts are frames."""
    hints = get_type_hints(kind)
    return tuple(
        name
        for name in kind.__struct_fields__
        if name.endswith(SUFFIX) or any(map(_timed, _structs_in(hints[name])))
    )


def _structs_in(hint: Any) -> Iterator[type[Struct]]:  # noqa: ANN401 - whatever a type is
    if isinstance(hint, type) and issubclass(hint, Struct):
        yield hint
    for inner in get_args(hint):
        yield from _structs_in(inner)
