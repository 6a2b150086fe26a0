"""Asked of a look at a process once, however many ranks it stands for."""

from __future__ import annotations

from collections import OrderedDict
from functools import wraps
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.model.evidence import ProcessLook

MOST = 16
"""Looks whose answers are kept, the newest: ranks of a few ways to stand come one after another."""
Answer = TypeVar("Answer")


def remembered(ask: Callable[[ProcessLook], Answer]) -> Callable[[ProcessLook], Answer]:
    """Keep a pure function's answers of the newest looks, told apart by what they are, not equal.

    A look may have hundreds of threads, so comparing it takes as long as asking. Each kept answer
    holds its look, so that no other one can take its place in memory.
    """
    known: OrderedDict[int, tuple[ProcessLook, Answer]] = OrderedDict()

    @wraps(ask)
    def asked(look: ProcessLook) -> Answer:
        found = known.get(id(look))
        if found is not None and found[0] is look:
            return found[1]
        answer = ask(look)
        known[id(look)] = look, answer
        if len(known) > MOST:
            known.popitem(last=False)
        return answer

    return asked
