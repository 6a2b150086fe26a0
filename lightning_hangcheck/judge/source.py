"""What the code that ranks stand in says of them: tests of the rank, loops, and parking places."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.frames import rules_of, users_frames
from lightning_hangcheck.model.code_owner import is_ours, is_standard

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.model.case import CodeNote
    from lightning_hangcheck.model.evidence import Frame

Test = tuple[str, int, str]
Span = tuple[int, int]
Notes = dict[tuple[str, int], "CodeNote"]
AFTER_STEPS = ("validation", "teardown")
"""Phases that a framework goes on to when a rank has no more steps."""


def _at(code: Sequence[CodeNote]) -> Notes:
    return {(note.file, note.line): note for note in code}


def rank_conditions(code: Sequence[CodeNote], frames: Sequence[Frame]) -> list[Test]:
    """Return the tests of the rank under which one stands: file, line, text; innermost first."""
    notes, found = _at([note for note in code if note.condition]), list[Test]()
    for frame in reversed(frames):
        note = notes.get((frame.file, frame.line))
        if note is not None:
            text = note.condition if note.condition.startswith("@") else f"if {note.condition}"
            found.append((note.file, note.condition_line, text))
        elif any(rule.one_rank for rule in rules_of(frame)):
            found.append((frame.file, 0, "@rank_zero_only"))
    return found


def tests_apart(
    code: Sequence[CodeNote],
    stacks: Collection[Sequence[Frame]],
    others: Collection[Sequence[Frame]],
) -> bool:
    """Whether a test of the rank brought some ranks elsewhere than others.

    Each of the first stands under one that none of the others stands under; or each of the others
    stands behind one that leaves the way there on one rank, ``if rank == 0: return``.
    """
    elsewhere = {test for stack in others for test in rank_conditions(code, stack)}
    if stacks and all(set(rank_conditions(code, stack)) - elsewhere for stack in stacks):
        return True

    def skips(frames: Sequence[Frame]) -> set[tuple[str, str]]:
        here = {(frame.file, frame.line) for frame in frames}
        skipping = (note for note in code if note.skipped_under and (note.file, note.line) in here)
        return {(note.file, note.skipped_under) for note in skipping}

    passed = {test for stack in stacks for test in skips(stack)}
    return bool(others) and all(skips(stack) - passed for stack in others)


def left_loop(code: Sequence[CodeNote], frames: Sequence[Frame], others: Sequence[Frame]) -> bool:
    """Whether a rank has left a loop that another one is still in.

    In the first function that both are in at different lines, it is further down, and not in the
    loop that the other is in there or in a call made from there, nor led past it by a test. Of a
    framework's own loops, whose lines nobody notes, it is in another one or in what follows, and
    not in the user's code below; between two loops a rank may stand alone for other reasons.
    """
    depth = _parting(frames, others)
    here, there = frames[depth:], others[depth:]
    users = users_frames(frames)
    if here and there and here[0] in users:
        return _below(_at(code), here[0], there, users_frames(others))
    if any(frame in users for frame in here):
        return False
    own = _framework_loops(here)
    went_on = any(rule.phase in AFTER_STEPS for frame in here for rule in rules_of(frame))
    return bool(_framework_loops(there) - own) and (bool(own) or went_on)


def had_left(
    code: Sequence[CodeNote],
    before: Sequence[Frame],
    frames: Sequence[Frame],
    others: Sequence[Frame],
) -> bool:
    """Whether a rank that has left a loop was out of it already at the operation before.

    Its way there parts from the other one's where its way now does: a sanity check or an evaluation
    at the top of an epoch comes before the loop.
    """
    depth = _parting(frames, others)
    here, there = before[depth:], others[depth:]
    if not here or not there or _parting(before, others) != depth:
        return False
    if here[0] in users_frames(before):
        return _below(_at(code), here[0], there, users_frames(others))
    return bool(_framework_loops(there) - _framework_loops(here))


def _below(notes: Notes, here: Frame, there: Sequence[Frame], users: Collection[Frame]) -> bool:
    other, *calls = there
    same = (here.file, here.function) == (other.file, other.function) and here.line > other.line
    own, theirs = (notes.get((one.file, one.line)) for one in (here, other))
    if not same or own is None or theirs is None:
        return False
    left = sorted(set(theirs.loops) - set(own.loops))
    apart = set(theirs.branches) - set(own.branches)
    if left or apart:
        return bool(left) and not _inside(left[0], apart)
    for frame in calls:
        note = notes.get((frame.file, frame.line)) if frame in users else None
        if note is not None and (note.loops or note.branches):
            return bool(note.loops) and not _inside(note.loops[0], note.branches)
    return bool(_framework_loops(there))


def _inside(loop: Span, branches: Collection[Span]) -> bool:
    """Whether a loop is in one of these blocks, and so may have been passed by altogether."""
    return any(first <= loop[0] and loop[1] <= last for first, last in branches)


def _parting(frames: Sequence[Frame], others: Sequence[Frame]) -> int:
    """Return how many outermost calls two threads have in common."""
    pairs = enumerate(zip(frames, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(frames), len(others)))


def _framework_loops(frames: Sequence[Frame]) -> set[str]:
    return {rule.loop for frame in frames for rule in rules_of(frame) if rule.loop is not None}


def left_out(
    code: Sequence[CodeNote], frames: Sequence[Frame], others: Sequence[Frame]
) -> tuple[Frame, str] | None:
    """Return the call that a rank left out, for a test under which another one made it.

    Behind the point at which their ways part the other one stands, in the user's own code, in a
    block to which a test leads, and this one in none but those that are around both.

    Returns:
        The line of that call, and the innermost test, empty where nobody noted how it reads; None
        where no test tells which of the two left something out.
    """
    depth, notes = _parting(frames, others), _at(code)
    if depth == min(len(frames), len(others)):
        return None
    here, there = (
        [one for one in way[depth:] if one in users_frames(way)] for way in (frames, others)
    )
    if not there or any((one.file, one.line) not in notes for one in (*here[:1], there[0])):
        return None

    def blocks(frame: Frame) -> dict[Span, str]:  # with the tests that lead to them
        note = notes.get((frame.file, frame.line))
        branches = note.branches if note is not None else ()
        tests = note.branch_tests if note is not None else ()
        return dict(zip(branches, tests or ("",) * len(branches), strict=False))

    together = here[:1] and here[0].file == there[0].file and here[0].function == there[0].function
    around = blocks(here[0]).keys() & blocks(there[0]).keys() if together else set()
    if any(blocks(one).keys() - around for one in here):
        return None
    led = next((one for one in there if blocks(one).keys() - around), None)
    return (led, list(blocks(led).values())[-1]) if led is not None else None


def calls_collectives(code: Sequence[CodeNote], frames: Sequence[Frame]) -> bool | None:
    """Whether a thread calls collectives from where it stands on, by all its calls together."""
    notes = {(note.file, note.line): note.collectives_ahead for note in code}
    asked = [one for one in frames if not is_standard(one.file) and not is_ours(one.file)]
    found = {notes.get((one.file, one.line)) for one in asked}
    return True if True in found else None if None in found else False


def parked_in(frames: Sequence[Frame]) -> str:
    """Say where a framework parks a rank that does nothing special; empty where it does not."""
    users = users_frames(frames)
    for frame in reversed(frames):
        parked = next((rule.parked for rule in rules_of(frame) if rule.parked is not None), None)
        if parked is not None or frame in users:
            return parked or ""
    return ""
