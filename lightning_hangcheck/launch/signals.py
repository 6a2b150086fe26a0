"""Signals of `hangcheck run`: taken one by one, so that each can be passed on to the command."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
HELD = (*PASSED_ON, signal.SIGCHLD)
HELD_WITH_REGION = (*HELD, signal.SIGTSTP)
"""Where something of ours is drawn on the terminal, it is taken away before we stop."""
_LIBC = ctypes.CDLL(None)
"""`signal.sigtimedwait` returns what happens to lie in memory where a stop, as by Ctrl-Z, lasts
longer than its time limit (seen with CPython 3.11), so libc's own is asked."""
SET_BYTES = 128
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _SignalInfo(ctypes.Structure):
    """siginfo_t, include/uapi/asm-generic/siginfo.h: 128 bytes, its union aligned to a pointer."""

    _fields_ = (
        ("number", ctypes.c_int),
        ("error", ctypes.c_int),
        ("code", ctypes.c_int),
        ("_gap", ctypes.c_int * (ctypes.sizeof(ctypes.c_void_p) // 4 - 1)),
        ("pid", ctypes.c_int),
        ("_rest", ctypes.c_char * 112),
    )


class Taken(Struct, frozen=True):
    """A signal that was sent to this process.

    Attributes:
        from_kernel: The terminal sent it, to the whole foreground group: the command has got it
            already. Not so for `hangs_up`.
    """

    number: signal.Signals
    from_kernel: bool

    @property
    def asks_for_end(self) -> bool:
        """Whether it ends the job; one that we were told to ignore (nohup) does not."""
        return self.number in END_SIGNALS and signal.getsignal(self.number) is not signal.SIG_IGN

    @property
    def hangs_up(self) -> bool:
        """Whether the terminal of a session that we lead was closed.

        Then the kernel tells the session's leader alone (drivers/tty/tty_jobctrl.c,
        tty_signal_session_leader), and the leader its jobs.
        """
        leads = os.getsid(0) == os.getpid()
        return self.number == signal.SIGHUP and self.from_kernel and leads and self.asks_for_end

    @property
    def by(self) -> str:
        """Who asked for the end by it, as in `AskedEnd`."""
        if not self.from_kernel:
            return f"{self.number.name} sent to hangcheck run"
        if self.number == signal.SIGHUP:
            return "SIGHUP (its terminal was closed)"
        return f"{self.number.name} from the terminal"


def hold(signals: Iterable[signal.Signals]) -> set[signal.Signals | int]:
    """Block signals so that `next_signal` can take them; returns the mask from before."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signals))


def next_signal(held: Iterable[signal.Signals], time_limit_s: float) -> Taken | None:
    """Wait for a signal that others, or a child's end, sent to this process.

    Args:
        held: Which ones; what is not blocked would be taken from whoever else handles it.
        time_limit_s: Seconds.

    Returns:
        None when the time is up, and for what we sent ourselves together with our group.
    """
    taken, whole_s = _SignalInfo(), int(time_limit_s)
    limit = _TimeSpec(whole_s, round((time_limit_s - whole_s) * NANOSECONDS))
    number = _LIBC.sigtimedwait(_set_of(held), ctypes.byref(taken), ctypes.byref(limit))
    if number <= 0 or taken.pid == os.getpid():  # EINTR: this process was stopped, and goes on
        return None
    return Taken(signal.Signals(number), from_kernel=taken.code > 0)


def _set_of(signals: Iterable[signal.Signals]) -> ctypes.Array[ctypes.c_char]:
    chosen = ctypes.create_string_buffer(SET_BYTES)
    _LIBC.sigemptyset(chosen)
    for number in signals:
        _LIBC.sigaddset(chosen, int(number))
    return chosen


def restore(mask: set[signal.Signals | int]) -> None:
    """Set the mask of before."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
