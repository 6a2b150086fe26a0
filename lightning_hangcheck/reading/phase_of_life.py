"""Where in its life a rank is, and what tells so: the surest word first."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.gather.stack_groups import latest_frames
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.phase_words import creates_logger, phase_of_name
from lightning_hangcheck.model.slugs import Phase
from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.place import is_exiting
from lightning_hangcheck.reading.torch_waits import bare_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.flight import FlightRecord

Basis = Literal["calls", "page", "names", "life"]
LEAST_REDUCTIONS = 2
"""Of one shape, before they are taken for those of steps: a start has each at most once."""


class PhaseOfLife(Struct, frozen=True):
    """A phase, and what told it.

    Attributes:
        told_by: ``calls`` frames of known code; ``page`` the rank's own sections and hooks;
            ``names`` of the user's functions; ``life`` what it has done so far.
    """

    phase: Phase
    told_by: Basis


def phase_of_life(view: RankView, frames: Sequence[Frame]) -> PhaseOfLife | None:
    """Tell where in its life a rank is.

    The rank's own word counts, then its calls, then whole words in the names of the user's
    functions, the innermost first. Three of the rank's words are told too rarely for that:
    ``training_step``, which Lightning's callback says once a step, gives way to calls, and
    ``startup``, with which every page begins, and ``dataloading``, which the callbacks say
    whatever else is done until the next batch, give way to names too. Creating the logger
    overrides all: it is the more specific, and often runs inside a phase of the training loop.

    Args:
        view: The rank.
        frames: Of its main thread, outermost first.

    Returns:
        None where neither is known of a rank that has no process.
    """
    own = view.own_process
    if own is not None and is_exiting(latest_frames(own)):
        return PhaseOfLife("teardown", "calls")
    overriding, innermost = _phases_of_calls(frames)
    called = overriding or innermost
    if overriding == "logger_init":
        return PhaseOfLife("logger_init", "calls")
    said = _said(view.beat)
    if said not in (None, "startup", "dataloading", "training_step"):
        return PhaseOfLife(said, "page")
    if called is not None:
        return PhaseOfLife(called, "calls")
    if said == "training_step":
        return PhaseOfLife(said, "page")
    named = _phase_of_names(frames)
    if named is not None:
        return PhaseOfLife(named, "names")
    if said == "dataloading":
        return PhaseOfLife(said, "page")
    alive = view.pid is not None and view.process_exit is None
    return PhaseOfLife(_by_deeds(view), "life") if alive or said else None


def _said(beat: Beat | None) -> Phase | None:
    """What the rank says; that it creates its logger, from within any other section."""
    if beat is None:
        return None
    creates = any(creates_logger(section.name) for section in beat.main_sections)
    return "logger_init" if creates else beat.phase


def _phases_of_calls(frames: Sequence[Frame]) -> tuple[Phase | None, Phase | None]:
    """Return the innermost phase among those that win wherever they stand, and among all."""
    innermost: Phase | None = None
    for frame in reversed(frames):
        for rule in meanings(frame.function, frame.file):
            if rule.phase is not None and rule.wins:
                return rule.phase, innermost or rule.phase
            innermost = innermost or rule.phase
    return None, innermost


def _phase_of_names(frames: Sequence[Frame]) -> Phase | None:
    users = (bare_name(frame.function) for frame in reversed(frames) if is_users(frame.file))
    return next((phase for name in users if (phase := phase_of_name(name)) is not None), None)


def _by_deeds(view: RankView) -> Phase:
    beat = view.beat
    if beat is not None and beat.ending != "running":
        return "teardown"
    # a page begins with ``startup`` and shows none once a loop of the program's own began
    looped = beat is not None and beat.phase is None and beat.beats > 0
    stepped = beat is not None and bool(beat.step)
    return "training_step" if looped or stepped or _reduced(view.flight) else "startup"


def _reduced(flight: FlightRecord | None) -> bool:
    """Whether torch recorded collectives of steps: reductions that come again."""
    groups = flight.groups if flight is not None else ()
    seen = Counter(
        (group.group, entry.op, entry.sizes)
        for group in groups
        for entry in group.entries
        if "reduce" in entry.op
    )
    return any(count >= LEAST_REDUCTIONS for count in seen.values())
