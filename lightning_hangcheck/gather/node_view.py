"""One node's case as another may read it: on another clock, without ids that mean nothing there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.evidence import ThreadState, WaitTarget

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from lightning_hangcheck.model.case import Case


Fact = TypeVar("Fact", bound=Struct)


def pids_of(case: Case) -> set[int]:
    """Return the process ids of a case's ranks and of what runs below them."""
    return {look.pid for view in case.ranks for look in view.processes}


def without_pids(fact: Fact, foreign: AbstractSet[int]) -> Fact:
    """Forget who could end a wait where its process id is another process's on another node.

    Containers number their processes alike, so a holder 17 of a lock would else be taken for the
    rank of any node that happens to be process 17 there.

    Args:
        fact: A case, or any struct inside one.
        foreign: Process ids of other nodes.
    """
    if isinstance(fact, ThreadState):
        return replace(fact, waits_for=tuple(_kept(fact.waits_for, foreign)))
    changed = {name: _walked(getattr(fact, name), foreign) for name in fact.__struct_fields__}
    return replace(fact, **changed)


def _walked(value: Any, foreign: AbstractSet[int]) -> Any:  # noqa: ANN401 - whatever a field holds
    if isinstance(value, Struct):
        return without_pids(value, foreign)
    return tuple(_walked(item, foreign) for item in value) if isinstance(value, tuple) else value


def _kept(targets: tuple[WaitTarget, ...], foreign: AbstractSet[int]) -> list[WaitTarget]:
    return [
        replace(target, holders=tuple(one for one in target.holders if one.pid not in foreign))
        for target in targets
        if not (
            target.kind == "process" and target.name.isdecimal() and int(target.name) in foreign
        )
    ]


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
