"""Reads a stack: which known wait a thread is in, and which line of the user's it is at. Pure.

What a frame of other people's code means is data: ``knowledge/frames.toml``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.knowledge import FrameRule, WaitKind, frames_file
from lightning_hangcheck.model.code_owner import is_users, program_of
from lightning_hangcheck.model.evidence import COMPREHENSIONS, NAMELESS, Frame
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView

COLLECTIVE: frozenset[WaitKind] = frozenset({"collective", "backward", "device"})
RENDEZVOUS: frozenset[WaitKind] = frozenset({"rendezvous_connect", "rendezvous_peers"})
FOR_RANKS: frozenset[WaitKind] = COLLECTIVE | RENDEZVOUS | {"rendezvous_nodes", "guard"}
"""Waits that only other ranks (or the store that they share) can end."""
ENTRIES = ("<module>", "_bootstrap", "_run_module_as_main", "main")
"""Outermost frames of a program: a script, what a thread forked, and what `python -m` runs; `main`
where somebody kept the inner part of a stack."""
DEEPEST_SHOWN = 100
"""Frames that faulthandler shows of a stack: of a deeper one the outermost are missing."""
DISTINCT_FRAMES = 65_536
"""Frames remembered: a job of 1,024 ranks has a few hundred; then the oldest are dropped."""


@lru_cache(maxsize=DISTINCT_FRAMES)
def meanings(function: str, file: str) -> tuple[FrameRule, ...]:
    """Return the rules of frames.toml that match: those of this file, then those of folders."""
    by_file, rooted = _index(), f"/{file}"
    of_file = by_file.get(file.rpartition("/")[2], ())
    near = [rule for rule in of_file if rooted.endswith(f"/{rule.file}")]
    near += [rule for rule in by_file.get("", ()) if f"/{rule.file}" in rooted]
    return tuple(rule for rule in near if re.fullmatch(rule.functions, bare_name(function)))


def rules_of(frame: Frame) -> tuple[FrameRule, ...]:
    """Return what is known of the function that a frame is in."""
    return meanings(frame.function, frame.file)


@cache
def _index() -> dict[str, list[FrameRule]]:
    by_file: dict[str, list[FrameRule]] = defaultdict(list)
    for rule in frames_file().frame:
        by_file[rule.file.rpartition("/")[2]].append(rule)
    return by_file


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
    """Find what a thread waits for, frames outermost first; None where they show none.

    Read from the innermost outwards, up to the first that is the user's own code: what a user's
    function does inside a library's is the user's doing. ``backward`` is a wait only if the thread
    is idle, which frames don't tell.
    """
    program = program_of(functions_in(frames))
    for position in reversed(range(len(frames))):
        frame = frames[position]
        for rule in rules_of(frame):
            if rule.wait is not None and holds(rule, frames, position):
                name = rule.name or bare_name(frame.function)
                return None if rule.wait == "work" else Wait(rule.wait, name, frame)
        if is_users(frame.file, program):
            return None
    return None


def users_frames(frames: Sequence[Frame], program: str = "") -> tuple[Frame, ...]:
    """Return the frames of the user's own code."""
    program = program or program_of(functions_in(frames))
    return tuple(frame for frame in frames if is_users(frame.file, program))


def of_own_process(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Drop the frames that a forked process inherited: its parent stood there, not it."""
    for position in reversed(range(len(frames))):
        frame = frames[position]
        if any(rule.starts_process for rule in rules_of(frame)):
            return tuple(frames[position + 1 :])
    return tuple(frames)


def functions_in(frames: Sequence[Frame]) -> list[tuple[str, str]]:
    """Return the functions of a stack without their lines, each with its file."""
    return [(frame.function, frame.file) for frame in frames]


def bare_name(function: str) -> str:
    """Return a function's name without its class or enclosing function."""
    return function.rpartition(".")[2]


def holds(rule: FrameRule, frames: Sequence[Frame], position: int) -> bool:
    """Whether a rule holds for a frame: a user's function of a library's name is not that one."""
    outside = rule.under.split("|") if rule.under is not None else ()
    below = rule.under is None or any(
        bare_name(frame.function) in outside and not is_users(frame.file)
        for frame in frames[:position]
    )
    return below and (not rule.leaf or position == len(frames) - 1)


def users_place(frames: Sequence[Frame], program: str = "") -> Frame | None:
    """Return the innermost frame of the user's own code, None where there is none.

    Before Python 3.11 a comprehension's frame does not tell in which function it is; the next one
    of its file outwards does: nothing else can run it, but a generator that was handed on.
    """
    users = users_frames(frames, program)[::-1]
    place = users[0] if users else None
    if place is None or place.function not in COMPREHENSIONS:
        return place
    named = (one for one in users if one.file == place.file and one.function not in NAMELESS)
    around = next(named, place)
    if around is place or around.function == "<module>":
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

    All else in a main thread runs below a module or the interpreter's own start, which are left by
    then.
    """
    return 0 < len(frames) < DEEPEST_SHOWN and not (
        bare_name(frames[0].function) in ENTRIES or frames[0].file.startswith("<frozen")
    )
