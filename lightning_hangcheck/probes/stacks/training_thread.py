"""Which thread of a rank trains? Mostly the main one.

A process that serves others keeps its main thread for them, and trains in a thread beside it: so
does an actor of Ray Train (ray 2.60, train/v2/_internal/execution/worker_group/thread_runner.py),
whose main thread answers every two seconds that it lives, and a notebook that trains in a thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.naming.code_owner import is_users, only_serves
from lightning_hangcheck.probes.proc.files import read_stat

if TYPE_CHECKING:
    from lightning_hangcheck.model.evidence import ProcessStack, ThreadStack


def training_first(stack: ProcessStack) -> ProcessStack:
    """Put the thread that trains first, where that is not the main one.

    It is another where the main thread `only_serves`, and a thread beside it runs the user's code.
    Of several the one that was started first is it: it started the others.

    Args:
        stack: Of a rank, the main thread first.
    """
    main, *others = stack.threads
    users = [one for one in others if any(is_users(frame.file) for frame in one.frames)]
    if not users or not only_serves((frame.function, frame.file) for frame in main.frames):
        return stack
    first = min(users, key=lambda one: _age(stack, one))
    rest = (one for one in stack.threads if one is not first)
    return replace(stack, threads=(first, *rest))


def _age(stack: ProcessStack, thread: ThreadStack) -> tuple[int, int]:
    """Sorts the oldest first; without ids the newest comes first in a stack (faulthandler)."""
    if thread.tid is None:
        return 0, -stack.threads.index(thread)
    try:
        return read_stat(stack.pid, thread.tid).started_ticks, thread.tid
    except OSError:
        return 0, thread.tid
