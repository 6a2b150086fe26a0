"""Signals of `hangcheck run`: taken one by one, so that each can be passed on to the command."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

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
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def hold(signals: Iterable[signal.Signals]) -> set[signal.Signals | int]:
    """Block signals so that `next_signal` can take them; returns the mask from before."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, signals))


def next_signal(time_limit_s: float) -> tuple[signal.Signals, bool] | None:
    """Wait for a signal that was sent to this process.

    Returns:
        The signal, and whether it came from the terminal: then the command, which is in the same
        foreground group, has got it already. None when the time is up.
    """
    taken = signal.sigtimedwait([*PASSED_ON, signal.SIGCHLD], time_limit_s)
    if taken is None:
        return None
    from_kernel = taken.si_code > 0
    return signal.Signals(taken.si_signo), from_kernel


def restore(mask: set[signal.Signals | int]) -> None:
    """Set the mask of before."""
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
