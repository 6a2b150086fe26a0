"""A piece of a program: the source of a function in which something happens, and its truth."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Thread = Literal["main", "pool", "thread", "asyncio", "process"]
Waiting = Literal["collective", "async", "polled", "p2p", "store", "flag_file", "nobody"]


class Mechanism(Struct, frozen=True, kw_only=True):
    """How a program goes wrong, or takes long.

    Attributes:
        source: Of a function ``$function(affected)``, which notes the onset itself; ``$helper`` and
            ``$third`` are further functions, ``$noun`` a word. None of it tests for a rank.
        cause: Slugs that are right; several with the reason in ``because``.
        threads: Where it may run.
        ranked: Whether the function takes part in collectives itself, so that the ranks' ways part.
        affects: ``one`` rank, the ``first`` or any number (``any``).
        slow: Whether the contract gives it more than a minute.
        places: Where it may happen; empty for anywhere.
    """

    name: str
    source: str
    imports: tuple[str, ...] = ()
    cause: tuple[str, ...] = ()
    because: str = ""
    verdict: tuple[str, ...] = ("hang",)
    threads: tuple[Thread, ...] = ("main",)
    ranked: bool = False
    affects: Literal["one", "first", "any"] = "any"
    least_ranks: int = 1
    slow: bool = False
    places: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    function: tuple[str, ...] = ("function",)
    culprits: Literal["affected", "holder_too", "either_end"] = "affected"
    has_process: bool = True
