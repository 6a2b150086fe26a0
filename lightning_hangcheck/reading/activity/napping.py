"""Does a thread that uses the processor sleep for moments, again and again? Pure.

A loop that yields at each turn (``time.sleep(0)``, a poll every millisecond) is found in one C call
without the interpreter lock by nearly every look, as one long computation is. The kernel knows
better: a computation is never asleep until a time, and one sleep takes no turns on the processor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessState, Sample, ThreadState

NAPS = 20
"""Turns a second on the processor from which they are naps. Whoever naps less often uses under 2 %
of a core for it, so he is idle; ``time.sleep(0)`` takes 10,000 (Linux 6.18, Python 3.11)."""
BUSY_HELPERS = 0.20
"""Cores used by its other threads from which it may be these that the main thread waits for."""


def naps(earlier: Sample, later: Sample) -> bool:
    """Whether a process's main thread naps, and no other thread of it works meanwhile.

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
