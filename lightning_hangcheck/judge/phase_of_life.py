"""Which phase of its life a rank is in, what told so, and whose pace applies there."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from lightning_hangcheck.judge.alike import latest_frames
from lightning_hangcheck.judge.exits import page_of, raised_at
from lightning_hangcheck.judge.frames import (
    bare_name,
    is_exiting,
    outlived_stack_s,
    rules_of,
    users_frames,
    users_place,
)
from lightning_hangcheck.judge.operations import groups_of
from lightning_hangcheck.model.slugs import Phase
from lightning_hangcheck.model.words import UNKNOWN_PLACE, creates_logger, phase_of_function

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.evidence import Frame, Sample
    from lightning_hangcheck.model.flight import FlightRecord

Basis = Literal["calls", "page", "names", "life"]
LEAST_REDUCTIONS = 2
"""Operations of one shape before they count as those of steps: a start has each at most once."""
LEAST_REPEATED = 10
"""The same for gathers, other operations without a root, and messages between two ranks: a start
may exchange in a small loop what ranks must agree on. With a root it hands out each parameter."""
SAID_UNTIL_THE_NEXT = ("dataloading", "training_step", "trainer_init")
"""Phases that hooks set and never reset."""
AROUND_LOADING = ("trainer_init",)
"""Calls around so much that a file read inside says more."""
PASSES: dict[str, Phase] = {
    "training_step": "training_step",
    "validation_step": "validation",
    "test_step": "validation",
    "predict_step": "validation",
    "prediction_step": "validation",
}
"""Called by Lightning and transformers once for each batch, around the user's own code."""
ONCE_A_STEP: tuple[Phase, ...] = ("backward", "optimizer_step")
STEP: tuple[Phase, ...] = ("training_step", *ONCE_A_STEP)
LOOPS: dict[Phase, tuple[Phase, ...]] = {
    **dict.fromkeys(STEP, STEP),
    "validation": ("validation",),
    "sanity_check": ("validation",),
    "dataloading": (),
}
"""What the calls must show, by the page's phase. Callbacks also say ``dataloading`` at the end of
an epoch; a loader works in evaluations too, and is slow with its first batch."""


class PhaseOfLife(Struct, frozen=True):
    """A phase, and what told it.

    ``calls`` frames of known code; ``page`` the rank's own sections and hooks; ``names`` of the
    user's functions; ``life`` what it has done so far.
    """

    phase: Phase
    basis: Basis


NOTHING_KNOWN = PhaseOfLife("startup", "life")


def phase_of_life(view: RankView, frames: Sequence[Frame]) -> PhaseOfLife | None:
    """Return a rank's phase; None if nothing is known of a rank without a process.

    An open section or hook counts first, then its calls, then names of the user's functions
    (innermost first), then what the rank has done so far. The hook ``startup`` does not count, as
    pages begin with it, nor what callbacks say until the next batch (`SAID_UNTIL_THE_NEXT`).
    Creating the logger overrides all: it often runs inside a phase of training. If a rank went on
    after its newest stack and ended, calls count only if all else is silent. If an exception ended
    it, the frame that raised replaces all calls.
    """
    at, beat = raised_at(view), page_of(view)
    if at is not None:
        return _phase_at(view, (at,))
    if view.process_exit is not None and beat.ending == "finished":
        alone = beat.membership != "none" or (beat.world_size or 1) == 1
        if not alone and not _stepped(view):  # it left before its first step
            return PhaseOfLife("startup", "life")
    newest = _phase_at(view, ()) if outlived_stack_s(view) else None
    return newest or _phase_at(view, frames)


def _phase_at(view: RankView, frames: Sequence[Frame]) -> PhaseOfLife | None:
    own, beat = view.own_process, page_of(view)
    if own is not None and is_exiting(latest_frames(own)):
        return PhaseOfLife("teardown", "calls")
    overriding, called = _phases_of_calls(frames)
    if overriding == "logger_init":
        return PhaseOfLife("logger_init", "calls")
    said = beat.phase
    if any(creates_logger(section.name) for section in beat.main_sections):
        said = "logger_init"  # from within any other section
    if said not in (None, "startup", *SAID_UNTIL_THE_NEXT):
        return PhaseOfLife(said, "page")
    shown = overriding or called
    ends = ("finished", "raised") if view.process_exit is None else ("finished",)
    deeds: Phase = "training_step" if _stepped(view) else "startup"
    deeds = "teardown" if beat.ending in ends else deeds
    users = (phase_of_function(frame.function) for frame in reversed(users_frames(frames)))
    named = next((phase for phase in users if phase is not None), None)
    # A call serves data as well as weights: the names around it show for which. If they agree, it
    # is as sure as any other. Without a name, a file read before the first step counts as the
    # model's, and a file written after it as a checkpoint. A read within the loop, and a write
    # before it, may as well be for data.
    kinds = [rule.of_file for frame in frames for rule in rules_of(frame) if rule.of_file]
    if kinds and named == kinds[-1]:
        return PhaseOfLife(named, "calls")
    if kinds and shown in (None, *AROUND_LOADING):
        if named is not None:
            return PhaseOfLife(named, "names")
        if (deeds != "startup") == (kinds[-1] == "checkpoint_save"):
            return PhaseOfLife(kinds[-1], "calls")
    if shown is not None:
        return PhaseOfLife(shown, "calls")
    if named is not None:
        return PhaseOfLife(named, "names")
    loads = said != "dataloading" or deeds != "training_step" or not frames
    if said in SAID_UNTIL_THE_NEXT and loads:
        return PhaseOfLife(said, "page")
    alive = view.pid is not None and view.process_exit is None
    return PhaseOfLife(deeds, "life") if alive or said or deeds == "training_step" else None


def completed_phase(
    view: RankView, life: PhaseOfLife | None, case: Case, frames: Sequence[Frame]
) -> PhaseOfLife | None:
    """Complete the phase of a rank that could not be asked in time: did it take part in steps?

    The others' records of completed steps tell, unless its own record has that group; or the code
    does: the rank stands where a step has been made before.
    """
    if view.pid is None or life not in (None, NOTHING_KNOWN):
        return life
    own = {record.group for record in groups_of(view)}
    lines = {(frame.file, frame.line) for frame in frames} if life is not None else set()
    stepped = any(
        record.last_completed >= LEAST_REDUCTIONS
        and record.group not in own
        and view.rank in record.ranks
        for other in case.ranks
        if other.flight is not None and _reduced(other.flight)
        for record in other.flight.groups
    ) or any(note.after_backward and (note.file, note.line) in lines for note in case.code)
    return PhaseOfLife("training_step", "life") if stepped else life


def _phases_of_calls(frames: Sequence[Frame]) -> tuple[Phase | None, Phase | None]:
    """Return the innermost phase of calls that always win, and the innermost of all."""
    with_phase = [rule for frame in reversed(frames) for rule in rules_of(frame) if rule.phase]
    winner = next((rule.phase for rule in with_phase if rule.wins), None)
    return winner, with_phase[0].phase if with_phase else None


def _stepped(view: RankView) -> bool:
    """Whether the rank has made steps, by its page or its record."""
    beat = page_of(view)
    # a page begins with ``startup``, and shows no phase once a loop of the program began
    looped = beat.phase is None and beat.beats > 0
    return looped or bool(beat.step) or _reduced(view.flight)


def _reduced(flight: FlightRecord | None) -> bool:
    """Whether recorded or noted collectives repeat as those of steps do.

    On GPUs torch's record drops completed ones; the rank's own notes keep them.
    """
    if flight is None:
        return False
    counts = flight.messages
    posted = (*counts.sent.values(), *counts.received.values()) if counts is not None else ()
    if flight.reduced >= LEAST_REDUCTIONS or max(flight.repeated, *posted, 0) >= LEAST_REPEATED:
        return True
    seen = Counter(
        (group.group, entry.op, entry.sizes)
        for group in flight.groups
        for entry in group.entries
        if entry.site not in flight.sites  # one call of each place may be that of a start
    )
    return any(
        count >= (LEAST_REDUCTIONS if "reduce" in op else LEAST_REPEATED)
        for (_, op, _), count in seen.items()
        if "reduce" in op or "gather" in op or "all_to_all" in op
    )


def rare_place(beat: Beat | None, sample: Sample) -> str:
    """Name the rank's place if not every pass of its loop comes there; else return "".

    A page tells the last event: after a step that is ``training_step`` until the next one. Pauses
    between steps teach nothing about an evaluation once an epoch, or an optimizer that inverts
    matrices every fifty steps. So calls must show that the rank is in what takes time in every
    pass. Otherwise the place is named by the phase of its calls, or by the user's function.
    """
    if beat is None or beat.phase not in LOOPS:
        return ""
    threads = sample.stack.threads if sample.stack is not None else ()
    frames = threads[0].frames if threads else ()
    parts: list[Phase] = []  # of a pass, the innermost first
    for frame in reversed(frames):
        phases = {rule.phase for rule in rules_of(frame)}
        part = PASSES.get(bare_name(frame.function))
        every = (*((part,) if part is not None else ()), *ONCE_A_STEP, "dataloading")
        parts += [phase for phase in every if phase in phases][:1]
    told_batch = beat.phase == "training_step" and beat.batch is not None  # by a callback
    in_pass = set(parts) & set(LOOPS[beat.phase]) or (told_batch and "dataloading" in parts)
    if in_pass and parts[0] != "optimizer_step":
        return ""
    overriding, called = _phases_of_calls(frames)
    place = users_place(frames)
    return overriding or called or (place.function if place is not None else UNKNOWN_PLACE)
