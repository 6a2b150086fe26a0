"""Signals of `hangcheck run`: taken one by one, so that each can be passed on to the command."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from msgspec import Struct

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
END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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
    taken = signal.sigtimedwait(held, time_limit_s)
    if taken is None or taken.si_pid == os.getpid():
        return None
    return Taken(signal.Signals(taken.si_signo), from_kernel=taken.si_code > 0)


def restore(mask: set[signal.Signals | int]) -> None:
    """Set the mask of before."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
