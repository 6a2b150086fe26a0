"""The console line of the contract: one write(2) to stderr, from every rank that should speak.

How long this process has been running, counted from its start and not from our import.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Literal

from lightning_hangcheck import log
from lightning_hangcheck.machine import TICKS_PER_SECOND, read_process_stat
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.identity import Identity


def process_start_ns() -> int:
    """When this process started, in nanoseconds on CLOCK_BOOTTIME.

    The kernel gives it in clock ticks since boot (proc(5), field 22), up to 10 ms too early. Where
    /proc does not show it, or shows what cannot be (gVisor), it is now.
    """
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    stat = read_process_stat(os.getpid())
    if stat is None:
        return now
    start = stat.started_ticks * NANOSECONDS // TICKS_PER_SECOND
    return start if 0 < start <= now else now


# POSIX keeps a write to a pipe whole up to PIPE_BUF, 4096 on Linux
LONGEST_LINE = 4096
RANKS_THAT_ALL_SPEAK = 16


class Console:
    """Prints lines, unless that could hold the process up or the rank should be quiet.

    One that is ``in_trouble``, after an exception, speaks at any world size.
    """

    def __init__(self, mode: Literal["auto", "all", "off"], identity: Identity) -> None:
        self.in_trouble = False
        self._mode = mode
        self._start_ns = 0 if mode == "off" else process_start_ns()
        self.identify(identity)

    def identify(self, identity: Identity) -> None:
        """Speak as this rank."""
        self._who = name_rank(identity, os.getpid())
        self._is_spokesman = (
            identity.rank == 0 or (identity.world_size or 1) <= RANKS_THAT_ALL_SPEAK
        )

    def say(self, text: str) -> None:
        """Print one line.

        It is left out where standard error does not take it at once; the journal has it.
        """
        if self._mode == "off":
            return
        if not (self._is_spokesman or self.in_trouble or self._mode == "all"):
            return
        elapsed_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._start_ns
        log.write_at_once(format_line(time.time(), elapsed_ns / NANOSECONDS, self._who, text))


def name_rank(identity: Identity, pid: int) -> str:
    """``[R0/2][LR0][PID:12345]``, with question marks for what is not known yet."""
    rank = "?" if identity.rank is None else identity.rank
    ranks = "?/?" if identity.world_size is None else f"{rank}/{identity.world_size}"
    local_rank = "?" if identity.local_rank is None else identity.local_rank
    return f"[R{ranks}][LR{local_rank}][PID:{pid}]"


def format_line(at_s: float, elapsed_s: float, who: str, text: str) -> bytes:
    """Write one line of the contract, section 1; with its newline at most 4096 bytes."""
    hour, minute, second = time.localtime(at_s)[3:6]
    clock = f"{hour:02}:{minute:02}:{second:02}.{int(at_s % 1 * 1000):03}"
    data = f"[{clock}][+{elapsed_s:.3f}s]{who} {text}".encode(errors="replace")
    if len(data) >= LONGEST_LINE:
        data = data[: LONGEST_LINE - 1].decode(errors="ignore").encode()
    return data + b"\n"
