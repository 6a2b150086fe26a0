"""Where a rank stands: the line of the user's own code, and in its tracked loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.evidence import COMPREHENSIONS, NAMELESS
from lightning_hangcheck.model.naming.code_owner import is_users
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Frame

ENTRIES = ("<module>", "_bootstrap", "_run_module_as_main")
"""Outermost frames of a program: a script, what a thread forked, and what `python -m` runs."""
DEEPEST_SHOWN = 100
"""Frames that faulthandler shows of a stack: of a deeper one the outermost are missing."""


def users_place(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, None where there is none.

    Before Python 3.11 a comprehension's frame does not tell in which function it is. The next one
    of its file outwards does: nothing else can run it, but a generator that was handed on.

    Args:
        frames: Outermost first.
    """
    users = [frame for frame in reversed(frames) if is_users(frame.file)]
    if not users or users[0].function not in COMPREHENSIONS:
        return users[0] if users else None
    place, *outside = users
    named = (one for one in outside if one.file == place.file and one.function not in NAMELESS)
    around = next(named, None)
    if around is None or around.function == "<module>":
        return place
    return replace(place, function=f"{around.function}.<locals>.{place.function}")


def tracked_place(beat: Beat | None) -> str:
    """Say where in a tracked loop a rank is, by its own word.

    Returns:
        For example ``in step "get observation" of "simulation", item 41``; empty outside of one.
    """
    sections = beat.main_sections if beat is not None else ()
    loops = [index for index, section in enumerate(sections) if section.item is not None]
    if not loops:
        return ""
    loop, steps = sections[loops[-1]], sections[loops[-1] + 1 :]
    step = f'step "{steps[-1].name}" of ' if steps else ""
    return f'in {step}"{loop.name}", item {loop.item}'


def outlived_stack_s(view: RankView) -> float:
    """Return how long a rank that has ended went on after its newest stack was taken, else 0.

    Where it stood then is not where it ended.
    """
    own, beat = view.own_process, view.beat
    if own is None or beat is None or view.process_exit is None:
        return 0.0
    taken_ns = max((one.taken_ns for one in own.samples if one.stack is not None), default=None)
    seen_ns = max(beat.last_beat_ns, beat.ended_ns if beat.ending != "running" else 0)
    return max(0.0, (seen_ns - taken_ns) / NANOSECONDS) if taken_ns is not None else 0.0


def is_exiting(frames: Sequence[Frame]) -> bool:
    """Whether the interpreter runs what was registered for its exit.

    All else in a main thread runs below a module or, before the first one, below the interpreter's
    own start. Both are left by then, so an exit handler is the outermost frame.

    Args:
        frames: Of the main thread, outermost first, those before a fork included.
    """
    if not frames or len(frames) >= DEEPEST_SHOWN:
        return False
    outermost = frames[0]
    name = outermost.function.rpartition(".")[2]
    return name not in ENTRIES and not outermost.file.startswith("<frozen")
