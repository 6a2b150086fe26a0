"""Where a rank stands: the line of the user's own code, and the phase of its life."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.knowledge.frames import meanings
from lightning_hangcheck.model.code_owner import is_users

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.slugs import Phase

LOGGER_WORDS = ("logger", "wandb")
ENDING_WORDS = ("finish", "close", "closing", "teardown")  # of the logger, not its creation
ENTRIES = ("<module>", "_bootstrap", "_run_module_as_main")
"""Outermost frames of a program: a script, what a thread forked, and what `python -m` runs."""
DEEPEST_SHOWN = 100
"""Frames that faulthandler shows of a stack: of a deeper one the outermost are missing."""


def users_place(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost frame of the user's own code, None where there is none.

    Args:
        frames: Outermost first.
    """
    return next((frame for frame in reversed(frames) if is_users(frame.file)), None)


def phase_of(frames: Sequence[Frame], beat: Beat | None) -> Phase | None:
    """Tell where in its life a rank is.

    The rank's own word counts, and without it its frames, the innermost first. Two words count only
    where frames don't tell: ``startup``, with which every page begins, and ``dataloading``, which
    the callbacks say from the end of a step until the next, whatever else is done in between.
    Creating the logger overrides all: it is the more specific, and often runs inside a phase of the
    training loop.

    Args:
        frames: Of its main thread, outermost first.
        beat: Newest reading of its page, if it has one.

    Returns:
        The phase; None where neither page nor frames tell.
    """
    overriding, innermost = _phases_in(frames)
    if overriding == "logger_init" or _creates_logger(beat):
        return "logger_init"
    said = beat.phase if beat is not None else None
    if said not in (None, "startup", "dataloading"):
        return said
    return overriding or innermost or said


def tracked_place(beat: Beat | None) -> str:
    """Say where in a tracked loop a rank is, by its own word.

    Returns:
        For example ``in step "get observation" of "simulation", item 41``; empty outside of one.
    """
    sections = beat.sections if beat is not None else ()
    loops = [index for index, section in enumerate(sections) if section.item is not None]
    if not loops:
        return ""
    loop, steps = sections[loops[-1]], sections[loops[-1] + 1 :]
    step = f'step "{steps[-1].name}" of ' if steps else ""
    return f'in {step}"{loop.name}", item {loop.item}'


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


def _phases_in(frames: Sequence[Frame]) -> tuple[Phase | None, Phase | None]:
    """Return the innermost phase among those that win wherever they stand, and among all."""
    innermost: Phase | None = None
    for frame in reversed(frames):
        for rule in meanings(frame.function, frame.file):
            if rule.phase is not None and rule.wins:
                return rule.phase, innermost or rule.phase
            innermost = innermost or rule.phase
    return None, innermost


def _creates_logger(beat: Beat | None) -> bool:
    names = [section.name.lower() for section in (beat.sections if beat is not None else ())]
    return any(
        any(word in name for word in LOGGER_WORDS)
        and not any(word in name for word in ENDING_WORDS)
        for name in names
    )
