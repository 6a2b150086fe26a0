"""Reads a stack: which known wait a thread is in, and at which line of the user's code. Pure.

What frames of libraries mean is data: ``knowledge/frames.toml``. Notes on the source tell about the
code in which ranks stand: tests of the rank, loops, and places where frameworks park ranks.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache, lru_cache
from itertools import pairwise
from operator import eq, ge, gt, le, lt, ne
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.judge.knowledge import FrameRule, WaitKind, frames_file
from lightning_hangcheck.model.code_owner import is_ours, is_standard, is_users, program_of
from lightning_hangcheck.model.evidence import COMPREHENSIONS, NAMELESS, Frame
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.case import CodeNote, RankView

COLLECTIVE: frozenset[WaitKind] = frozenset({"collective", "backward", "device"})
RENDEZVOUS: frozenset[WaitKind] = frozenset({"rendezvous_connect", "rendezvous_peers"})
FOR_RANKS: frozenset[WaitKind] = COLLECTIVE | RENDEZVOUS | {"rendezvous_nodes", "guard"}
"""Waits that only other ranks (or the store that they share) can end."""
ENTRIES = ("<module>", "_bootstrap", "_run_module_as_main", "main")
"""Outermost frames of a program: a script, what a thread forked, and what `python -m` runs; `main`
if somebody kept only the inner part of a stack."""
DEEPEST_SHOWN = 100
"""Frames that faulthandler shows of a stack: a deeper stack lacks its outermost frames."""
DISTINCT_FRAMES = 65_536
"""Frames that are remembered: a job of 1,024 ranks has a few hundred; the oldest are dropped."""
Test = tuple[str, int, str]
Span = tuple[int, int]
Notes = dict[tuple[str, int], "CodeNote"]
EXITS = ("__exit__", "__aexit__")
CALLS_FORWARD = "/torch/nn/modules/module.py"
AFTER_STEPS = ("validation", "teardown")
"""Phases that a framework enters once a rank has no more steps."""


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
    """Whether a thread is in a wait that only other ranks could end."""
    wait = find_wait(frames)
    return wait is not None and wait.kind in FOR_RANKS


def find_wait(frames: Sequence[Frame]) -> Wait | None:
    """Find what a thread waits for; frames are outermost first; None if they show nothing.

    Frames are read from the innermost outwards, up to the first of the user's own code: what a
    user's function does inside a library is the user's doing. ``backward`` is a wait only if the
    thread is idle, which frames do not tell.
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
    """Drop frames that a forked process inherited: its parent stood there."""
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
    """Whether a rule applies to a frame; a user's function with a library's name is not meant."""
    outside = rule.under.split("|") if rule.under is not None else ()
    below = rule.under is None or any(
        bare_name(frame.function) in outside and not is_users(frame.file)
        for frame in frames[:position]
    )
    return below and (not rule.leaf or position == len(frames) - 1)


def users_place(frames: Sequence[Frame], program: str = "") -> Frame | None:
    """Return the innermost frame of the user's own code, or None.

    Before Python 3.11 a comprehension's frame does not name its function. The next frame of the
    same file outwards does: nothing else can run it, except a generator that was handed on.
    """
    users = users_frames(frames, program)[::-1]
    place = users[0] if users else None
    if place is None or place.function not in COMPREHENSIONS:
        return place
    named = (
        frame for frame in users if frame.file == place.file and frame.function not in NAMELESS
    )
    around = next(named, place)
    if around is place or around.function == "<module>":
        return place
    return replace(place, function=f"{around.function}.<locals>.{place.function}")


def tracked_place(beat: Beat | None) -> str:
    """Say where in a tracked loop a rank is, as it reported.

    Returns:
        For example ``in step "get observation" of "simulation", item 41``; empty outside a loop.
    """
    sections = beat.main_sections if beat is not None else ()
    loops = [index for index, section in enumerate(sections) if section.item is not None]
    if not loops:
        return ""
    loop, steps = sections[loops[-1]], sections[loops[-1] + 1 :]
    step = f'step "{steps[-1].name}" of ' if steps else ""
    return f'in {step}"{loop.name}", item {loop.item}'


def outlived_stack_s(view: RankView) -> float:
    """Return how long an ended rank went on after its newest stack was taken, or 0.

    Where it stood then is not where it ended.
    """
    own, beat = view.own_process, view.beat
    if own is None or beat is None or view.process_exit is None:
        return 0.0
    taken_ns = max(
        (sample.taken_ns for sample in own.samples if sample.stack is not None), default=None
    )
    seen_ns = max(beat.last_beat_ns, beat.ended_ns if beat.ending != "running" else 0)
    return max(0.0, (seen_ns - taken_ns) / NANOSECONDS) if taken_ns is not None else 0.0


def is_exiting(frames: Sequence[Frame]) -> bool:
    """Whether the interpreter runs its exit handlers.

    Any other code of a main thread runs below a module or the interpreter's start. A process of
    multiprocessing runs its own handlers there, too.
    """
    if any(
        frame.function == "_exit_function" and frame.file.endswith("/multiprocessing/util.py")
        for frame in frames
    ):
        return True
    return 0 < len(frames) < DEEPEST_SHOWN and not (
        bare_name(frames[0].function) in ENTRIES or frames[0].file.startswith("<frozen")
    )


# What notes on the code say.


def _at(code: Sequence[CodeNote]) -> Notes:
    return {(note.file, note.line): note for note in code}


def rank_conditions(code: Sequence[CodeNote], frames: Sequence[Frame]) -> list[Test]:
    """Return the rank tests around a stack as (file, line, text), innermost first."""
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
    """Whether a test of the rank led some ranks elsewhere than others.

    Either each of the first stands under a test that none of the others stands under; or each of
    the others stands behind a test that lets one rank leave, ``if rank == 0: return``.
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


def rejoined(
    code: Sequence[CodeNote], ways: Collection[tuple[Frame, ...]]
) -> dict[tuple[Frame, ...], tuple[Frame, ...]]:
    """Treat a test of the rank as passed by all if both its sides call one function.

    Such a test leads nobody away: ``if rank == 0: train(log)``, ``else: train(None)``.
    """
    found = {way: way for way in ways}
    tests = {
        place: note for place, note in _at(code).items() if note.condition or note.skipped_under
    }
    for at in range(max(map(len, found), default=0) - 1 if tests else 0):
        together: dict[object, dict[tuple[Frame, ...], CodeNote]] = {}
        for way, led in found.items():
            note = tests.get((led[at].file, led[at].line)) if led[at + 1 :] else None
            if note is not None and is_users(led[at + 1].file):
                called = led[at].function, led[at + 1].function, led[at + 1].file
                test = (note.condition or note.skipped_under).removeprefix("not ")
                together.setdefault((led[:at], note.file, test, called), {})[way] = note
        for sides in together.values():
            line = max(note.condition_line for note in sides.values())
            for way in sides if len({note.condition for note in sides.values()}) > 1 else ():
                led = found[way]
                found[way] = (*led[:at], replace(led[at], line=line), *led[at + 1 :])
    return found


def left_loop(
    code: Sequence[CodeNote],
    frames: Sequence[Frame],
    others: Sequence[Frame],
    *,
    same_epoch: bool = False,
) -> bool:
    """Whether a rank has left a loop that another rank is still in.

    In the first function that both are in at different lines, it is further down, outside the loop
    of the other rank, and no test led it past that loop. A loop inside a model's ``forward`` does
    not count. With loops of a framework, the rank must be in another loop or in what follows, and
    not in the user's code below; or both report the ``same_epoch`` and it is behind the call that
    leads to the loop.
    """
    depth = _common_calls(frames, others)
    here, there = frames[depth:], _above_model(_at(code), others)[depth:]
    users = users_frames(frames)
    if here and there and here[0] in users:
        return _below(_at(code), here, there, users_frames(others))
    if any(frame in users for frame in here):
        # in the same loop over epochs, but not in the loop over batches
        notes, mine, other = _at(code), here[0], (there or here)[0]
        this, that = (notes.get((frame.file, frame.line)) for frame in (mine, other))
        one_loop = bool(this and that and set(this.loops).intersection(that.loops))
        behind = one_loop and mine.file == other.file and mine.line > other.line
        return same_epoch and behind and bool(_framework_loops(there[2:]))
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

    Then its way there differs from the other's at the same place as now: a sanity check or an
    evaluation at the top of an epoch comes before the loop. A rank that is at the very same call
    again, in no loop that the other is not in, has gone round an outer loop and skipped the inner
    one without any work.
    """
    depth = _common_calls(frames, others)
    here, there = before[depth:], others[depth:]
    if not here or not there or _common_calls(before, others) != depth:
        return False
    notes = _at(code)
    around = _loops(notes, frames)
    if before == frames and around and around <= _loops(notes, others[: depth + 1]) - {None}:
        return False
    if here[0] in users_frames(before):
        return _below(notes, here, there, users_frames(others))
    return bool(_framework_loops(there) - _framework_loops(here))


def ran_out(
    code: Sequence[CodeNote],
    before: Sequence[Frame],
    frames: Sequence[Frame],
    others: Sequence[Frame],
) -> bool:
    """Whether a rank is out of a loop that it was in at the operation before, and others still are.

    It may have gone round an outer loop. Not if a test inside the loop leads to that operation: the
    rank may have skipped only that.
    """
    notes = _at(code)
    now, then, theirs = (
        _loops(notes, _above_model(notes, way)) for way in (frames, before, others)
    )
    left = (then & theirs) - now - {None} if None not in now else set()
    tested = {
        (frame.file, loop)
        for frame in users_frames(before)
        if (note := notes.get((frame.file, frame.line))) is not None
        for loop in note.loops
        if any(_inside(branch, [loop]) for branch in note.branches)
    }
    return bool(left - tested)


def _loops(notes: Notes, frames: Sequence[Frame]) -> set[tuple[str, Span] | None]:
    """Return the loops of the user's code around a way; None stands for those of a strange line."""
    users = [(frame.file, notes.get((frame.file, frame.line))) for frame in users_frames(frames)]
    known = {(file, loop) for file, note in users if note is not None for loop in note.loops}
    return known | ({None} if any(note is None for _, note in users) else set())


def _below(
    notes: Notes, here: Sequence[Frame], there: Sequence[Frame], users: Collection[Frame]
) -> bool:
    (mine, *inner), (other, *calls) = here, there
    own, theirs = (notes.get((frame.file, frame.line)) for frame in (mine, other))
    if own is None or theirs is None or (mine.file, mine.function) != (other.file, other.function):
        return False
    leaves_block = inner and bare_name(inner[0].function) in EXITS
    if other.line >= (own.with_until + 1 if leaves_block and own.with_until else mine.line):
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


def _above_model(notes: Notes, frames: Sequence[Frame]) -> Sequence[Frame]:
    """Drop what runs within a ``forward`` of torch's modules: nobody runs out of layers.

    A ``forward`` that itself calls ``backward`` is no model's, but a training loop.
    """
    calls = (at for at, frame in enumerate(frames) if frame.file.endswith(CALLS_FORWARD))
    users = users_frames(frames)
    inside = (at + 1 for at in calls if at + 1 < len(frames) and frames[at + 1] in users)
    end = next(inside, len(frames))
    found = (notes.get((frame.file, frame.line)) for frame in frames[end:])
    trains = any(note.after_backward for note in found if note is not None)
    return frames if trains else frames[:end]


def _inside(loop: Span, branches: Collection[Span]) -> bool:
    """Whether a loop is inside one of these blocks, so that it may have been skipped entirely."""
    return any(first <= loop[0] and loop[1] <= last for first, last in branches)


def _common_calls(frames: Sequence[Frame], others: Sequence[Frame]) -> int:
    """Return how many outermost calls two threads have in common."""
    pairs = enumerate(zip(frames, others, strict=False))
    return next(
        (at for at, (frame, other) in pairs if frame != other), min(len(frames), len(others))
    )


def _framework_loops(frames: Sequence[Frame]) -> set[str]:
    return {rule.loop for frame in frames for rule in rules_of(frame) if rule.loop is not None}


def left_out(
    code: Sequence[CodeNote], frames: Sequence[Frame], others: Sequence[Frame]
) -> tuple[Frame, str] | None:
    """Return the call that a rank left out because of a test, and that test; or None.

    Below their common calls, the other rank stands, in the user's code, in a block behind a test;
    this rank stands in no block but those around both.
    """
    depth, notes = _common_calls(frames, others), _at(code)
    if depth == min(len(frames), len(others)):
        return None
    here, there = (
        [frame for frame in way[depth:] if frame in users_frames(way)] for way in (frames, others)
    )
    if not there or any((frame.file, frame.line) not in notes for frame in (*here[:1], there[0])):
        return None

    def blocks(frame: Frame) -> dict[Span, str]:  # with the tests that lead to them
        note = notes.get((frame.file, frame.line))
        branches = note.branches if note is not None else ()
        tests = note.branch_tests if note is not None else ()
        return dict(zip(branches, tests or ("",) * len(branches), strict=False))

    together = here[:1] and here[0].file == there[0].file and here[0].function == there[0].function
    around = blocks(here[0]).keys() & blocks(there[0]).keys() if together else set()
    if any(blocks(frame).keys() - around for frame in here):
        return None
    led = next((frame for frame in there if blocks(frame).keys() - around), None)
    return (led, list(blocks(led).values())[-1]) if led is not None else None


def calls_collectives(code: Sequence[CodeNote], frames: Sequence[Frame]) -> bool | None:
    """Whether a thread calls collectives from where it stands on, over all its frames."""
    notes = {(note.file, note.line): note.collectives_ahead for note in code}
    asked = [frame for frame in frames if not is_standard(frame.file) and not is_ours(frame.file)]
    found = {notes.get((frame.file, frame.line)) for frame in asked}
    return True if True in found else None if None in found else False


def may_call_later(code: Sequence[CodeNote], frames: Sequence[Frame]) -> bool:
    """Whether a thread that goes round a loop may call collectives once that ends by itself.

    What it called in each pass is no sign. The innermost loop on its stack is the one.
    """
    notes = _at(code)
    asked = [frame for frame in frames if not is_standard(frame.file) and not is_ours(frame.file)]
    found = [notes.get((frame.file, frame.line)) for frame in asked]
    at = next((at for at in reversed(range(len(found))) if (n := found[at]) and n.loop_ends), None)
    if at is None or None in found[at:] or any(n and n.loop_ends is False for n in found[at:]):
        return False
    behind, outer = found[at], found[:at]
    return (behind is not None and behind.collectives_behind is not False) or any(
        note is None or note.collectives_ahead is not False for note in outer
    )


def caught_around(code: Sequence[CodeNote], frames: Sequence[Frame]) -> list[str]:
    """Return the exceptions that loops around a thread's calls catch to retry, inner first."""
    notes = _at(code)
    found = (notes.get((frame.file, frame.line)) for frame in reversed(frames))
    return [name for note in found if note is not None for name in note.caught]


def parked_in(frames: Sequence[Frame]) -> str:
    """Say where a framework parks a rank that has nothing special to do, or return ""."""
    users = users_frames(frames)
    for frame in reversed(frames):
        parked = next((rule.parked for rule in rules_of(frame) if rule.parked is not None), None)
        if parked is not None or frame in users:
            return parked or ""
    return ""


# A test of the rank is a reason only if it separates the ranks that diverged: all ranks of a
# sharded layer pass ``rank >= 4`` on their way to it.


def separating(
    code: Sequence[CodeNote], side: Sequence[RankView], others: Sequence[RankView]
) -> list[CodeNote]:
    """Return the notes without tests that, as written, ranks on both sides pass."""

    def on_both_sides(condition: str) -> bool:
        try:
            test = ast.parse(condition, mode="eval").body
            return all(any(_value(test, view) for view in ranks) for ranks in (side, others))
        except (SyntaxError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
            return False  # it needs more than the rank's number

    both = {text for text in {note.condition for note in code} if text and on_both_sides(text)}
    return [replace(note, condition="") if note.condition in both else note for note in code]


_ORDERS: tuple[type[ast.cmpop], ...] = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_COMPARED = dict(zip(_ORDERS, (eq, ne, lt, le, gt, ge), strict=True))


def _value(node: ast.expr, view: RankView) -> int:
    """Evaluate ``dist.get_rank() % 2 == 1`` for a rank; LookupError if it is no number."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Call(func=inner, args=[], keywords=[]):
            return _value(inner, view)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            own = dict.fromkeys(("rank", "global_rank", "get_rank"), view.rank)
            return {**own, "local_rank": view.local_rank or 0}[name]
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return not _value(inner, view)
        case ast.BinOp(op=ast.Mod(), left=left, right=right):
            return _value(left, view) % _value(right, view)
        case ast.BoolOp(op=how, values=parts):
            passed = [bool(_value(expression, view)) for expression in parts]
            return all(passed) if isinstance(how, ast.And) else any(passed)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            pairs = pairwise(_value(expression, view) for expression in (left, *rest))
            return all(_COMPARED[type(op)](*pair) for op, pair in zip(ops, pairs, strict=True))
    raise LookupError(type(node).__name__)
