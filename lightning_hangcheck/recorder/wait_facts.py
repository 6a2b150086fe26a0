"""What only the rank itself can tell of its wait: signal handlers, its coroutine, an exception."""

from __future__ import annotations

import functools
import signal
import sys
import threading
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from lightning_hangcheck.model.code_owner import TRAINING, is_users, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.recorder.announcer import last_words

SENT_BY_PROGRAMS = (
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGCHLD),
)
MOST_HANDLERS = 64
"""Objects that are looked into: a handler may call the one before it, and that the one before."""


def handled_signals() -> tuple[int, ...]:
    """Return for which signals Python code runs that may end a wait; about 10 microseconds.

    A handler in C, such as faulthandler's, sets no event. One of a training framework, such as
    Lightning's for SLURM or a DataLoader's for its workers, looks only after its own work, unless
    it calls one of somebody else.
    """
    return tuple(
        int(signals) for signals in SENT_BY_PROGRAMS if _is_of_others(signal.getsignal(signals))
    )


def _is_of_others(handler: object) -> bool:
    pending = [handler]
    for number, one in enumerate(pending):
        if number >= MOST_HANDLERS or isinstance(one, BuiltinFunctionType):
            return True
        if isinstance(one, FunctionType):
            owner = owner_of(one.__code__.co_filename)
            if owner.kind != "ours" and owner.package not in TRAINING:
                return True
            pending += [cell.cell_contents for cell in one.__closure__ or ()]
        elif isinstance(one, MethodType):
            pending.append(one.__func__)
        elif isinstance(one, functools.partial):
            pending += [one.func, *one.args]
        elif isinstance(one, (list, tuple)):
            pending += one
        elif callable(one):
            called = type(one).__call__
            if not isinstance(called, FunctionType) or _is_of_others(called):
                return True
            pending += vars(one).values()
    return False


DEEPEST = 100
"""Calls and coroutines that are walked through."""


def awaiting() -> list[Frame]:
    """Return the user's calls in the coroutine that the main thread's event loop is to end.

    No stack shows them while the loop waits: a coroutine that awaits is in no thread. Of several
    that are gathered the first that has not ended counts. About 10 microseconds.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    if "asyncio" not in sys.modules or frame is None:
        return []
    if not frame.f_code.co_filename.endswith("/selectors.py"):
        return []
    task: Any = None
    for _ in range(DEEPEST):
        name = frame.f_code.co_name
        if name == "run_until_complete" and "/asyncio/" in frame.f_code.co_filename:
            task = frame.f_locals.get("future")
            break
        if frame.f_back is None:
            break
        frame = frame.f_back
    found: list[Frame] = []
    for _ in range(DEEPEST):
        inner = task.get_coro() if hasattr(task, "get_coro") else None
        near: list[Any] = []  # other tasks for which it may wait
        while inner is not None and len(found) < DEEPEST:
            frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
            code = frame.f_code if frame is not None else None
            if frame is not None and code is not None and is_users(code.co_filename):
                function = getattr(code, "co_qualname", code.co_name)
                found.append(Frame(function, code.co_filename, frame.f_lineno))
            elif frame is not None and "/asyncio/" in frame.f_code.co_filename:
                # what `wait_for`, `wait` and a task group were given
                group = getattr(frame.f_locals.get("self"), "_tasks", ())
                near = [*frame.f_locals.values(), group]
            inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
        awaited = getattr(task, "_fut_waiter", None)
        near = [awaited, getattr(awaited, "_children", ()), *near]
        of_many = [list(one) if isinstance(one, (list, set, tuple)) else [one] for one in near]
        tasks = (one for several in of_many for one in several if hasattr(one, "get_coro"))
        task = next((one for one in tasks if one is not task and not one.done()), None)
        if task is None:
            break
    return found


class Handling:
    """The exception that the main thread handles, told once it was met twice: not in passing."""

    def __init__(self) -> None:
        self._handled, self._told = 0, ""

    def words(self) -> str:
        """Return it as one redacted line; empty where there is none, or it is new."""
        found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)  # noqa: SLF001
        error = found[1] if isinstance(found, tuple) else found  # before Python 3.12
        known, self._handled = self._handled, id(error) if error is not None else 0
        if error is None or self._handled != known:
            self._told = ""
        elif not self._told:
            self._told = last_words(error)
        return self._told
