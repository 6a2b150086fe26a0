"""What a thread waits for, told by the frames of other people's code that it stands in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.naming.code_owner import is_users
from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.knowledge.loading import WaitKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.reading.knowledge.loading import FrameRule

FOR_RANKS: frozenset[WaitKind] = frozenset(
    {
        "collective",
        "backward",
        "device",
        "rendezvous_connect",
        "rendezvous_peers",
        "rendezvous_nodes",
        "guard",
    }
)
"""Waits that only other ranks (or the store that they share) can end."""
COLLECTIVE: frozenset[WaitKind] = frozenset({"collective", "backward", "device"})
RENDEZVOUS: frozenset[WaitKind] = frozenset({"rendezvous_connect", "rendezvous_peers"})


class Wait(Struct, frozen=True):
    """A known wait: its kind, what people call it, and the frame that shows it."""

    kind: WaitKind
    name: str
    frame: Frame


def waits_for_ranks(frames: Sequence[Frame]) -> bool:
    """Whether a thread stands in a wait that only other ranks could end."""
    wait = find_wait(frames)
    return wait is not None and wait.kind in FOR_RANKS


def find_wait(frames: Sequence[Frame]) -> Wait | None:
    """Find what a thread waits for.

    Frames are read from the innermost outwards, up to the first that is the user's own code: what a
    user's function does inside a library's is the user's doing.

    Args:
        frames: Outermost first.

    Returns:
        The wait; None where the frames show none. ``backward`` is a wait only if the thread is
        idle, which frames don't tell.
    """
    for depth in range(len(frames)):
        position = len(frames) - 1 - depth
        frame = frames[position]
        for rule in meanings(frame.function, frame.file):
            if rule.wait is not None and holds(rule, frames, position):
                name = rule.name or bare_name(frame.function)
                return None if rule.wait == "work" else Wait(rule.wait, name, frame)
        if is_users(frame.file):
            return None
    return None


def of_own_process(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Drop the frames that a forked process inherited: its parent stood there, not it."""
    for position in reversed(range(len(frames))):
        frame = frames[position]
        if any(rule.starts_process for rule in meanings(frame.function, frame.file)):
            return tuple(frames[position + 1 :])
    return tuple(frames)


def bare_name(function: str) -> str:
    """Return a function's name without its class or enclosing function."""
    return function.rpartition(".")[2]


def holds(rule: FrameRule, frames: Sequence[Frame], position: int) -> bool:
    """Whether a rule that matches a frame holds where the frame stands in its stack."""
    if rule.leaf and position != len(frames) - 1:
        return False
    if rule.under is None:
        return True
    outside = rule.under.split("|")
    return any(bare_name(frame.function) in outside for frame in frames[:position])
