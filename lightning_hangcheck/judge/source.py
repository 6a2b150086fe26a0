"""What the code that ranks stand in says of them: tests of the rank, loops, and parking places."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.frames import rules_of, users_frames
from lightning_hangcheck.model.code_owner import is_ours, is_standard

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.model.case import CodeNote
    from lightning_hangcheck.model.evidence import Frame

Test = tuple[str, int, str]
Span = tuple[int, int]
AFTER_STEPS = ("validation", "teardown")
"""Phases that a framework goes on to when a rank has no more steps."""


def rank_conditions(code: Sequence[CodeNote], frames: Sequence[Frame]) -> list[Test]:
    """Return the tests of the rank under which one stands: file, line, text; innermost first."""
    notes = {(note.file, note.line): note for note in code if note.condition}
    found: list[Test] = []
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
    passed = {test for stack in stacks for test in _skips(code, stack)}
    return bool(others) and all(_skips(code, stack) - passed for stack in others)


def _skips(code: Sequence[CodeNote], frames: Sequence[Frame]) -> set[tuple[str, str]]:
    here = {(frame.file, frame.line) for frame in frames}
    return {
        (note.file, note.skipped_under)
        for note in code
        if note.skipped_under and (note.file, note.line) in here
    }


def left_loop(code: Sequence[CodeNote], frames: Sequence[Frame], others: Sequence[Frame]) -> bool:
    """Whether a rank has left a loop that another one is still in.

    In the first function that both are in at different lines, it is further down, and not in the
    loop that the other is in there or in a call made from there; one that a test may have led past
    that loop altogether has not left it. Of a framework's own loops, whose
    lines nobody notes, it is in another one or in what follows, and not in the user's code below;
    between two loops a rank may stand alone for other reasons.
    """
    pairs = list(zip_longest(frames, others))
    depth = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if depth is None:
        return False
    one, other = pairs[depth]
    users = users_frames(frames)
    if one is not None and other is not None and one in users:
        return _below(code, one, other, others, depth)
    if any(frame in users for frame in frames[depth:]):
        return False
    loops, own = _framework_loops(others[depth:]), _framework_loops(frames[depth:])
    went_on = any(rule.phase in AFTER_STEPS for frame in frames[depth:] for rule in rules_of(frame))
    return bool(loops - own) and (bool(own) or went_on)


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
    pairs = list(zip_longest(frames, others))
    depth = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    if depth >= min(len(frames), len(others)):
        return None
    notes = {(note.file, note.line): note for note in code}
    here, there = (
        [one for one in way[depth:] if one in users_frames(way)] for way in (frames, others)
    )
    if not there or any((one.file, one.line) not in notes for one in (*here[:1], there[0])):
        return None
    blocks = {one: _blocks(notes.get((one.file, one.line))) for one in (*here, *there)}
    together = here[:1] and here[0].file == there[0].file and here[0].function == there[0].function
    around = blocks[here[0]].keys() & blocks[there[0]].keys() if together else set()
    if any(blocks[one].keys() - around for one in here):
        return None
    led = next((one for one in there if blocks[one].keys() - around), None)
    return (led, list(blocks[led].values())[-1]) if led is not None else None


def calls_collectives(code: Sequence[CodeNote], frames: Sequence[Frame]) -> bool | None:
    """Whether a thread calls collectives from where it stands on, by all its calls together."""
    notes = {(note.file, note.line): note.collectives_ahead for note in code}
    asked = [one for one in frames if not is_standard(one.file) and not is_ours(one.file)]
    found = {notes.get((one.file, one.line)) for one in asked}
    return True if True in found else None if None in found else False


def _blocks(note: CodeNote | None) -> dict[Span, str]:
    """The blocks that a line is in only if a test says so, each with this test."""
    if note is None:
        return {}
    tests = note.branch_tests or ("",) * len(note.branches)
    return dict(zip(note.branches, tests, strict=False))


def parked_in(frames: Sequence[Frame]) -> str:
    """Say where a framework parks a rank that does nothing special; empty where it does not."""
    users = users_frames(frames)
    for frame in reversed(frames):
        for rule in rules_of(frame):
            if rule.parked is not None:
                return rule.parked
        if frame in users:
            return ""
    return ""


def _inside(loop: Span, branches: Collection[Span]) -> bool:
    """Whether a loop is in one of these blocks, and so may have been passed by altogether."""
    return any(first <= loop[0] and loop[1] <= last for first, last in branches)


def _below(
    code: Sequence[CodeNote], one: Frame, other: Frame, others: Sequence[Frame], depth: int
) -> bool:
    if (one.file, one.function) != (other.file, other.function) or one.line <= other.line:
        return False
    notes = {(note.file, note.line): note for note in code}
    here = notes.get((one.file, one.line))
    there = notes.get((other.file, other.line))
    if here is None or there is None:
        return False
    left = sorted(set(there.loops) - set(here.loops))
    apart = set(there.branches) - set(here.branches)
    if left:
        return not _inside(left[0], apart)
    if apart:
        return False
    users = users_frames(others)
    for frame in others[depth + 1 :]:
        note = notes.get((frame.file, frame.line)) if frame in users else None
        if note is not None and note.loops:
            return not _inside(note.loops[0], note.branches)
        if note is not None and note.branches:
            return False
    return bool(_framework_loops(others[depth:]))


def _framework_loops(frames: Sequence[Frame]) -> set[str]:
    return {rule.loop for frame in frames for rule in rules_of(frame) if rule.loop is not None}
