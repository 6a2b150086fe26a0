"""Blocked processes as the kernel shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from processes import PATIENCE_S, until

from lightning_hangcheck.look.kernel import kernel_state
from lightning_hangcheck.look.open_files import Holders

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessState, WaitTarget

PROGRAM = "waiting_for.py"


def state_of(*pids: int) -> ProcessState:
    """The first one's state, with what looking at all of them adds."""
    states = [state for pid in pids if (state := kernel_state(pid, 0, PATIENCE_S)[0]) is not None]
    return with_holders(states)[0]


def with_holders(states: list[ProcessState]) -> list[ProcessState]:
    """All of them, with what looking at all of them adds."""
    holders = Holders([state.pid for state in states])
    return [holders.complete(state) for state in states]


def target_of(*pids: int, kind: str) -> WaitTarget:
    """What the first one's main thread waits for, once it is of that kind."""

    def look() -> WaitTarget | None:
        targets = state_of(*pids).threads[0].waits_for
        return next((target for target in targets if target.kind == kind), None)

    return until(look, f"pid {pids[0]} to wait for a {kind}")
