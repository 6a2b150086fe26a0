"""Notes from where each collective is called: torch's record has it only at too high a price."""

from __future__ import annotations

import inspect
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lightning_hangcheck import log
from lightning_hangcheck.hooks.zero_code.wrapping import act_before
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.collectives.call_sites import CallNoter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import FrameType, ModuleType

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "reduce_scatter_single",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
)
"""Functions that enter one operation themselves; those for objects call these."""


ROOTS = frozenset({"src", "dst"})
REDUCTIONS = frozenset({"op"})


def instrument_calls(module: ModuleType) -> None:
    """Note the caller of each collective before it is entered, with its root and reduction."""
    for name in COLLECTIVES:
        if hasattr(module, name):
            _watch(module, name)


def _watch(module: ModuleType, name: str) -> None:
    parameters = inspect.signature(getattr(module, name)).parameters
    root, reduction = _finder(parameters, ROOTS), _finder(parameters, REDUCTIONS)

    def note(caller: FrameType, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        noter = _noter(os.getpid())
        if noter is not None:
            number, kind = root(arguments, named), reduction(arguments, named)
            given = "" if number is None else f"root {number}"
            noter.note(caller, given, getattr(kind, "name", ""))

    act_before(module, name, note)


def _finder(
    parameters: Mapping[str, inspect.Parameter], names: frozenset[str]
) -> Callable[[tuple[Any, ...], Mapping[str, Any]], Any]:
    """Return what finds an argument in a call without binding it, which costs 10 us."""
    for place, (name, parameter) in enumerate(parameters.items()):
        if name in names:
            return lambda arguments, named: (
                arguments[place] if place < len(arguments) else named.get(name, parameter.default)
            )
    return lambda _arguments, _named: None


@lru_cache(maxsize=1)
def _noter(_pid: int) -> CallNoter | None:
    """Return this process's noter; None where it has no session, or no room there."""
    session = current().session
    if session is None:
        return None
    try:
        return CallNoter(session.torch_servers / str(os.getpid()))
    except OSError as error:
        log.once("call-notes", f"calls of collectives are not noted ({error})")
        return None
