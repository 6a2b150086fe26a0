"""Named tuples without importing `typing`, which takes a rank 4 ms at its start.

Modules that a rank imports set ``TYPE_CHECKING`` to False themselves; a type checker takes it as
true, and reads `typing.NamedTuple` in place of this one.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _OfAnnotations(type):
    def __new__(mcs, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
        if not bases:
            return super().__new__(mcs, name, bases, body)
        names = list(body.pop("__annotations__"))
        given = [body.pop(field) for field in names if field in body]
        made = namedtuple(name, names, defaults=given, module=body["__module__"])  # type: ignore[misc] # mypy wants literals
        for attribute in body.keys() - {"__qualname__"}:
            setattr(made, attribute, body[attribute])
        return made


class NamedTuple(metaclass=_OfAnnotations):
    """Base of a class whose annotated names are the fields of a tuple."""
