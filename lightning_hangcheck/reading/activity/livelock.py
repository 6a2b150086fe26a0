"""Does a rank that moves get on, or is it in a livelock? By the functions in which it was seen."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from lightning_hangcheck.model.naming.code_owner import is_ours
from lightning_hangcheck.reading.activity.napping import naps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.evidence import ProcessLook, Sample, ThreadStack

Function = tuple[str, str]
LARGEST_LOOP = 10
"""Functions between which a loop that never ends goes to and fro, at most: it tries again and again
with the help of a few. A model that is evaluated, which also repeats itself, is in dozens."""
LOOKS = 30
"""The newest, in which the functions of a loop are counted: half a minute and more. A rank that
passed through others before, and has been going to and fro between a few since, is in these few."""
FEWEST = 2
NEWEST = 3


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
        main = _thread(sample, None)
        if main is None or not main.frames:
            return
        first, self._since = self._since, self._since or sample
        before = _thread(first, None) if first is not None else None
        elsewhere = before is not None and main.frames != before.frames
        napping = first is not None and naps(first, sample)
        self.goes_round = self.goes_round or main.owns_gil or elsewhere or napping


def in_one_call(look: ProcessLook, tid: int | None = None) -> ThreadStack | None:
    """Return a thread if it stands in one C call without the interpreter lock, look after look.

    That may be one long computation: it does not go round, as far as anybody can see.

    Args:
        look: At its process.
        tid: Of the thread, the main one where there is none.
    """
    seen = [found for one in look.samples if (found := _thread(one, tid)) is not None][-NEWEST:]
    if len(seen) < FEWEST:
        return None
    same = all(one.frames == seen[-1].frames for one in seen)
    return seen[-1] if same and not any(one.owns_gil for one in seen) else None


def _thread(sample: Sample, tid: int | None) -> ThreadStack | None:
    threads = sample.stack.threads if sample.stack is not None else ()
    return next((one for one in threads if tid is None or one.tid == tid), None)


def _functions(sample: Sample) -> Iterator[Function]:
    """Return the functions of all threads but our own."""
    threads = sample.stack.threads if sample.stack is not None else ()
    for number, thread in enumerate(threads):
        if number == 0 or not any(is_ours(frame.file) for frame in thread.frames):
            for frame in thread.frames:
                yield frame.function, frame.file
