"""What is remembered of a rank between looks: where it was seen, and what a look may lack.

The functions in which a moving rank was seen tell progress from a livelock. And on a busy machine a
look may fail in part: py-spy is late, and the rank's own stacks lack the kernel's ids and class
names; or a name in the process's memory is not read in time. What is known of a thread that has not
moved since is kept.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.processes import IDLE_SHARE
from lightning_hangcheck.model.code_owner import is_ours
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.evidence import Frame, Sample, ThreadStack, ThreadState

Function = tuple[str, str]
Calls = tuple[tuple[str, str, int], ...]
LARGEST_LOOP = 10
"""Functions between which an endless loop moves, at most: it tries again and again with the help of
a few. The evaluation of a model, which also repeats itself, is in dozens."""
LOOKS = 30
"""Newest looks in which a loop's functions are counted: half a minute and more. A rank that passed
other functions before, but moves between a few since, shows only these few."""
STEADY = 8
"""Looks in a row without a new function, after which a loop's functions are known, except those
that last for moments. Such a function is nothing new if a known line calls it."""
NAPS = 20
"""Turns a second on the processor from which they are naps. A thread with fewer naps uses less than
2 % of a core for them, so it is idle; ``time.sleep(0)`` takes 10,000 (Linux 6.18, Python 3.11)."""
BUSY_HELPERS = 0.20
"""Cores used by other threads, from which the main thread may be waiting for these."""


class FunctionsMet:
    """Tells a program that makes progress from one that goes round in a loop.

    All functions of a loop have been met after a few looks; a long computation that makes progress
    calls others later. All processes and threads of a rank count together.

    Attributes:
        goes_round: Since anything new was met, the main thread was seen at several lines, or
            running Python or napping at one line. Of a call of microseconds, one look in seven sees
            Python run, if the call gives up the interpreter lock (torch 2.13, py-spy 0.4.3,
            ``isfinite`` in a loop); of one that sleeps, not one in a hundred.
        in_doubt: A polling thread is elsewhere; the next look tells whether it advanced.
    """

    def __init__(self) -> None:
        self.goes_round = self.in_doubt = False
        self._first: Sample | None = None  # since the last new function
        self._as_of_ns = self._steady = 0
        self._known: set[Function] = set()
        self._lines: set[Frame] = set()
        self._of_rank: deque[set[Function]] = deque(maxlen=LOOKS)
        self._rests: dict[int, _Rest] = {}

    def meet(self, sample: Sample, last_new_ns: int, *, of_child: bool) -> bool:
        """Add the functions of a sample, and say whether that shows anything new.

        Args:
            sample: Of one of the rank's processes.
            last_new_ns: When the rank last did anything new, by any sign. If that was another sign
                than ours, the rank has advanced since: earlier functions say nothing about where it
                is now.
            of_child: The sample is a child's. A worker owes one batch, whatever it does for that.
                The rank itself may do the same to many batches, and shows that by the size of its
                loop.
        """
        if last_new_ns > self._as_of_ns:
            for met in (self._known, self._lines, self._of_rank, self._rests):
                met.clear()
            self._as_of_ns, self._steady = last_new_ns, 0
        threads = sample.stack.threads if sample.stack is not None else ()
        states = {state.tid: state for state in (sample.kernel.threads if sample.kernel else ())}
        ways = [
            thread.frames
            for number, thread in enumerate(threads)
            if number == 0 or not any(is_ours(frame.file) for frame in thread.frames)
            if not self._passes(thread, states.get(thread.tid or 0), sample.taken_ns)
        ]
        new = any(map(self._is_new, ways))
        seen = {(frame.function, frame.file) for way in ways for frame in way}
        self._known |= seen
        self._lines.update(frame for way in ways for frame in way)
        if seen and not of_child:
            self._of_rank.append(seen)
            to_and_fro = seen.union(*self._of_rank) - seen.intersection(*self._of_rank)
            new = new or len(to_and_fro) > LARGEST_LOOP
        self._steady = 0 if new else self._steady + 1
        if new:
            self._as_of_ns = max(self._as_of_ns, sample.taken_ns)
            self._first, self.goes_round = None, False
        main = threads[0] if threads else None
        if not of_child and main is not None and main.frames:
            first, self._first = self._first, self._first or sample
            before = first.stack.threads[0] if first is not None and first.stack else None
            elsewhere = before is not None and main.frames != before.frames
            napping = first is not None and naps(first, sample)
            self.goes_round = self.goes_round or main.owns_gil or elsewhere or napping
        return new

    def _passes(self, thread: ThreadStack, state: ThreadState | None, taken_ns: int) -> bool:
        """Whether a thread that polls is somewhere new for a moment, as every poll may be.

        It had woken and was back where it slept before; met elsewhere once, hardly having run, it
        got on only if the next look does not find it in what is known.
        """
        if state is None:
            return False
        rest = self._rests.setdefault(state.tid, _Rest())
        before, rest.state, seconds = rest.state, state, (taken_ns - rest.taken_ns) / NANOSECONDS
        rest.taken_ns, again = taken_ns, thread.frames == rest.frames
        slept = before is not None and state.cpu_s - before.cpu_s < IDLE_SHARE * seconds
        if again and slept and before is not None:
            # only the main thread's turns are known; for others the time limit decides
            marks = (before.turns, state.turns), (before.wakes_ns, state.wakes_ns)
            rest.polls |= any(None not in pair and pair[0] != pair[1] for pair in marks)
        rest.passes = (
            rest.polls
            and slept
            and not rest.passes
            and (state.state == "R" or any(target.kind == "time" for target in state.waits_for))
            and self._is_new(thread.frames)
        )
        if not rest.passes:
            rest.frames = thread.frames
        self.in_doubt = self.in_doubt or rest.passes
        return rest.passes

    def _is_new(self, way: Sequence[Frame]) -> bool:
        """Whether a thread is in a function not met before, other than a late one of a loop."""
        met = [(frame.function, frame.file) in self._known for frame in way]
        first = met.index(False) if False in met else None
        late = self._steady >= STEADY and bool(first) and way[(first or 0) - 1] in self._lines
        return first is not None and not late


@dataclass
class _Rest:
    """A thread from look to look: where it was, whether it came back there, and passes by now."""

    state: ThreadState | None = None
    taken_ns: int = 0
    frames: tuple[Frame, ...] = ()
    polls: bool = False
    passes: bool = False


def naps(earlier: Sample, later: Sample) -> bool:
    """Whether a process's main thread sleeps for moments while no other thread works.

    By its stacks, a loop that yields at each turn (``time.sleep(0)``) is in one C call, as a long
    computation is. But a computation never sleeps until a time, and a single sleep takes no turns
    on the processor. A futex with a time limit does not count: threads wait for the interpreter
    lock so.
    """
    before, after = earlier.kernel, later.kernel
    seconds = (later.taken_ns - earlier.taken_ns) / NANOSECONDS
    if before is None or after is None or not before.threads or not after.threads or seconds <= 0:
        return False
    first, second = before.threads[0], after.threads[0]
    asleep = any(target.kind == "time" and target.call != "futex" for target in second.waits_for)
    if first.turns is None or second.turns is None or not asleep:
        return False
    beside_main_s = (after.cpu_s - second.cpu_s) - (before.cpu_s - first.cpu_s)
    often = second.turns - first.turns >= NAPS * seconds
    return often and beside_main_s < BUSY_HELPERS * seconds


def with_what_was_seen(newest: Sample, before: Sample) -> Sample:
    """Complete a sample by the previous one of the same process, for threads that stand still.

    Added are ids and class names, if the source of stacks tells neither, and the name of what a
    thread at the same lines waits for, if the call is the same and waits for one thing.
    """
    if newest.stack is None or before.stack is None:
        return newest
    if newest.stack.source != before.stack.source:
        known = {_calls(thread): thread for thread in before.stack.threads}
        threads = tuple(
            replace(old, active=thread.active, owns_gil=thread.owns_gil)
            if (old := known.get(_calls(thread))) is not None and thread.tid in (None, old.tid)
            else thread
            for thread in newest.stack.threads
        )
        newest = replace(newest, stack=replace(newest.stack, threads=threads))
    if newest.kernel is None or before.kernel is None or newest.stack is None:
        return newest
    now, then = (
        {(thread.tid, thread.frames) for thread in each.threads}
        for each in (newest.stack, before.stack)
    )
    still = {tid for tid, frames in now & then if tid is not None and frames}
    states = {state.tid: state for state in before.kernel.threads if state.tid in still}

    def named(state: ThreadState) -> ThreadState:
        old = states.get(state.tid)
        if old is None or (state.syscall, state.arguments) != (old.syscall, old.arguments):
            return state
        waits, waited = (
            [target for target in each.waits_for if target.kind != "time"] for each in (state, old)
        )
        if len(waits) != 1 or len(waited) != 1 or waits[0].name or waits[0].call != waited[0].call:
            return state
        found = replace(waited[0], holders=waits[0].holders or waited[0].holders)
        others = (target for target in state.waits_for if target is not waits[0])
        return replace(state, waits_for=(found, *others))

    states_now = tuple(map(named, newest.kernel.threads))
    return replace(newest, kernel=replace(newest.kernel, threads=states_now))


def _calls(thread: ThreadStack) -> Calls:
    """Where a thread stands, by what every source of stacks tells: not all tell class names."""
    return tuple(
        (frame.function.rpartition(".")[2], frame.file, frame.line) for frame in thread.frames
    )
