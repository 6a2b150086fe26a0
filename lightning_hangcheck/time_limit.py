"""Runs work that may block, and abandons it after its time limit."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Fact = TypeVar("Fact")

MOST_LEFT_BEHIND = 16
"""A blocked reader costs a thread for as long as the kernel keeps it. A file system that is down
blocks every reader, so the number of readers is limited."""
MOST_OF_ONE = 3
"""Readers that one process with locked memory may keep; other processes' places stay free."""
MOST_TARGETS = 32  # Processes that may keep readers at the same time
READING_LIMIT_S = 20.0
PART_LIMIT_S = 5.0
"""Limits for a run's folder, and for one file in it: only storage that does not answer takes so
long, such as a dead network file system."""
_taken: dict[int | None, int] = {}
_taking = threading.Lock()


class NoAnswer(Exception):
    """Work did not end within its time limit and was abandoned, or never began."""


def within(time_limit_s: float, work: Callable[[], Fact], of: int | None = None) -> Fact:
    """Run work in its own thread, as it may block in the kernel where no signal ends it.

    The thread is a daemon, so that it does not keep this process from ending. What the work raises
    is raised here. `NoAnswer` if the work took longer, earlier work is still blocked, or no thread
    can be started. ``of`` is the process whose memory is read. Each process has its own few places,
    so that a locked process does not use up those of others.
    """
    with _taking:
        taken = _taken.get(of, 0)
        if taken >= (MOST_LEFT_BEHIND if of is None else MOST_OF_ONE):
            whose = "" if of is None else f" of pid {of}"
            raise NoAnswer(f"{taken} earlier reads{whose} are still blocked")
        if of is not None and not taken and len(_taken) > MOST_TARGETS:
            raise NoAnswer(f"reads of {MOST_TARGETS} processes are still blocked")
        _taken[of] = taken + 1
    found: list[Fact] = []
    raised: list[Exception] = []

    def give_place_back() -> None:
        with _taking:
            _taken[of] -= 1
            if not _taken[of]:
                del _taken[of]

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            raised.append(error)
        finally:
            give_place_back()

    thread = threading.Thread(target=run, name="hangcheck-bounded", daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        give_place_back()
        raise NoAnswer("no further thread can be started") from error
    thread.join(time_limit_s)
    if raised:
        raise raised[0]
    if not found:
        raise NoAnswer(f"no answer within {time_limit_s:g} s")
    return found[0]


def _begin_anew_in_child() -> None:
    """Another thread may have held the lock at the fork; blocked threads are not in the child."""
    global _taking
    _taking = threading.Lock()
    _taken.clear()


os.register_at_fork(after_in_child=_begin_anew_in_child)
