"""Does a rank that moves get on, or is it in a livelock? By the functions in which it was seen."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lightning_hangcheck.model.code_owner import is_ours
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import ProcessState, Sample, ThreadStack, ThreadState

Function = tuple[str, str]
LARGEST_LOOP = 10
"""Functions between which a loop that never ends goes to and fro, at most: it tries again and again
with the help of a few. A model that is evaluated, which also repeats itself, is in dozens."""
LOOKS = 30
"""The newest, in which the functions of a loop are counted: half a minute and more. A rank that
passed through others before, and has been going to and fro between a few since, is in these few."""
NAPS = 20
"""Turns a second on the processor from which they are naps. Whoever naps less often uses under 2 %
of a core for it, so he is idle; ``time.sleep(0)`` takes 10,000 (Linux 6.18, Python 3.11)."""
BUSY_HELPERS = 0.20
"""Cores used by its other threads from which it may be these that the main thread waits for."""


class FunctionsMet:
    """Tells a program that gets on from one that goes round in a loop.

    A loop's functions have all been met after a few looks; a long computation that gets on calls
    others later. All processes and threads of a rank count together.

    Attributes:
        goes_round: Since anything new was met, the rank's main thread was seen at several lines, to
            run Python at one, or to nap at one. Of a call of microseconds one look in seven sees it
            run Python, where the interpreter lock is given up in that call (torch 2.13, py-spy
            0.4.3, ``isfinite`` in a loop); of one that sleeps no look in a hundred does.
    """

    def __init__(self) -> None:
        self.goes_round = False
        self._since: Sample | None = None
        self._known: set[Function] = set()
        self._of_rank: deque[set[Function]] = deque(maxlen=LOOKS)
        self._as_of_ns = 0

    def meet(self, sample: Sample, last_new_ns: int, *, of_child: bool) -> bool:
        """Add the functions of a sample, and say whether that shows anything new.

        Args:
            sample: Of one of the rank's processes.
            last_new_ns: When the rank last did anything new, by whatever sign. If that was none of
                ours, it advanced since: what it was in before says nothing of where it is now.
            of_child: It is a child's: a worker owes one batch, whatever it does for that. The rank
                itself may do the same to many batches, and shows that by the size of its loop.
        """
        if last_new_ns > self._as_of_ns:
            self._known.clear()
            self._of_rank.clear()
            self._as_of_ns = last_new_ns
        seen = set(_functions(sample))
        new = bool(seen - self._known)
        self._known |= seen
        if seen and not of_child:
            self._of_rank.append(seen)
            always = frozenset(seen).intersection(*self._of_rank)
            to_and_fro = frozenset(seen).union(*self._of_rank) - always
            new = new or len(to_and_fro) > LARGEST_LOOP
        if new:
            self._as_of_ns = max(self._as_of_ns, sample.taken_ns)
            self._since, self.goes_round = None, False
        if not of_child:
            self._watch_main(sample)
        return new

    def _watch_main(self, sample: Sample) -> None:
        """Compare with the first sample since anything new was met."""
        main = _main(sample)
        if main is None or not main.frames:
            return
        first, self._since = self._since, self._since or sample
        before = _main(first) if first is not None else None
        elsewhere = before is not None and main.frames != before.frames
        napping = first is not None and naps(first, sample)
        self.goes_round = self.goes_round or main.owns_gil or elsewhere or napping


def naps(earlier: Sample, later: Sample) -> bool:
    """Whether a process's main thread sleeps for moments, and no other thread works meanwhile.

    A loop that yields at each turn (``time.sleep(0)``, a poll every millisecond) is found in one C
    call without the interpreter lock by nearly every look, as one long computation is. The kernel
    knows better: a computation is never asleep until a time, and one sleep takes no turns on the
    processor.

    Args:
        earlier: Of the process.
        later: Of the same process: the main thread is asleep until a time here.
    """
    before, after = earlier.kernel, later.kernel
    seconds = (later.taken_ns - earlier.taken_ns) / NANOSECONDS
    if before is None or after is None or not before.threads or not after.threads or seconds <= 0:
        return False
    first, second = before.threads[0], after.threads[0]
    if first.turns is None or second.turns is None or not _asleep_until(second):
        return False
    often = second.turns - first.turns >= NAPS * seconds
    return often and _beside_main_s(after) - _beside_main_s(before) < BUSY_HELPERS * seconds


def _asleep_until(thread: ThreadState) -> bool:
    """A futex with a time limit is none: so do threads wait for the interpreter lock."""
    return any(one.kind == "time" and one.call != "futex" for one in thread.waits_for)


def _beside_main_s(process: ProcessState) -> float:
    return process.cpu_s - process.threads[0].cpu_s


def _main(sample: Sample) -> ThreadStack | None:
    threads = sample.stack.threads if sample.stack is not None else ()
    return threads[0] if threads else None


def _functions(sample: Sample) -> Iterator[Function]:
    """Return the functions of all threads but our own."""
    threads = sample.stack.threads if sample.stack is not None else ()
    for number, thread in enumerate(threads):
        if number == 0 or not any(is_ours(frame.file) for frame in thread.frames):
            for frame in thread.frames:
                yield frame.function, frame.file
