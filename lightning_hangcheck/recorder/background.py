"""The threads that a recording process keeps: its pulse, which also looks for the sidecar.

The pulse shows that the interpreter still turns. Where there is no room for a thread, that is said
and left for the sidecar's gaps.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.machine import NoRoom, is_alive, start_thread
from lightning_hangcheck.model.code_owner import TRAINING, is_users, owner_of
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.recorder.announcer import last_words
from lightning_hangcheck.session.offers import withhold
from lightning_hangcheck.session.session import read_sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.page import PageWriter
    from lightning_hangcheck.session.session import Session, SidecarFacts


YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# linux/prctl.h: "Yama" in ASCII
_PR_SET_PTRACER = 0x59616D61


class SidecarWatch:
    """Looks at the sidecar that the session names; called twice a second by the pulse thread.

    A sidecar that leaves on purpose removes its file first, so only one that was killed is missed.

    Args:
        file: The session's ``sidecar.json``.
        on_lost: Called with the process id of a sidecar that is gone, once for each.
        patience_s: Asked for the seconds that whoever keeps the sidecar has to put a new one in
            its place: one that is replaced by then is not missed.
    """

    def __init__(
        self, file: Path, on_lost: Callable[[int], None], patience_s: Callable[[], float]
    ) -> None:
        self._file = file
        self._on_lost = on_lost
        self._patience_s = patience_s
        self._known: SidecarFacts | None = None
        self._gone_since: float | None = None
        self._lost: SidecarFacts | None = None

    def look(self) -> None:
        """Look once, about 50 microseconds."""
        named = read_sidecar(self._file)
        if named is None or named == self._lost:
            return
        if named != self._known:
            self._known = named
            self._gone_since = None
            allow_to_read(named.pid)
        if is_alive(named.pid, named.started_ticks):
            return
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since >= self._patience_s():
            self._lost = named
            self._on_lost(named.pid)


def allow_to_read(pid: int) -> None:
    """Let one process, and its children such as py-spy, read this one where Yama asks for a name.

    With Yama's ptrace_scope 1, the default of Ubuntu, only an ancestor may read a process, and who
    is named by it (Documentation/admin-guide/LSM/Yama.rst).
    """
    with suppress(OSError, AttributeError):  # a kernel without Yama, a libc without prctl
        if YAMA_SCOPE.read_text().strip() == "1":
            import ctypes  # 5 ms that only a kernel with Yama costs, and there the pulse thread

            numbers = (ctypes.c_ulong(number) for number in (pid, 0, 0, 0))
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, *numbers)


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
    return tuple(int(one) for one in SENT_BY_PROGRAMS if _is_of_others(signal.getsignal(one)))


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


INTERVAL_S = 0.5


class Pulse:
    """Writes the clock to the page twice a second and looks after the sidecar.

    Raises:
        NoRoom: There is none for its thread.
    """

    def __init__(
        self, page: PageWriter, watch: SidecarWatch, errand: Callable[[], None], ranks: int
    ) -> None:
        self._page = page
        self._watch = watch
        self._errand = errand
        self._handled, self._told = 0, False  # which exception, and whether it was told
        self._stop = threading.Event()
        self._thread = start_thread(self._run, "hangcheck-pulse", ranks)
        page.pulse()

    def stop(self, limit_s: float) -> None:
        """End the thread; wait for it at most so many seconds."""
        self._stop.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._page.pulse()
            self._do("signal handlers and coroutines are not told", self._show_facts)
            self._do("the sidecar is no longer looked after", self._watch.look)
            self._do("torch's flight record is not offered", self._errand)

    def _show_facts(self) -> None:
        """What nobody can see from outside."""
        self._page.show_handled(handled_signals())
        self._page.show_awaiting(awaiting())
        found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)  # noqa: SLF001
        error = found[1] if isinstance(found, tuple) else found  # before Python 3.12
        known, self._handled = self._handled, id(error) if error is not None else 0
        if self._handled != known:
            self._told = False
            self._page.show_handling("")
        elif error is not None and not self._told:  # not only in passing
            self._told = True
            self._page.show_handling(last_words(error))

    def _do(self, otherwise: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it runs the hooks' callback; the pulse must go on
            log.once(otherwise, f"{otherwise}: {error!r}")


Started = TypeVar("Started")
NO_THREADS = "this rank starts no further threads of ours, training may need them: {}"


def unless_no_room(session: Session, start: Callable[[], Started]) -> Started | None:
    """Start something that needs a thread; None where there is no room for one, which is said."""
    try:
        return start()
    except NoRoom as refusal:
        say_withheld(session, NO_THREADS.format(refusal))
        return None


def say_withheld(session: Session, why: str) -> None:
    """Say once why something of ours was not started, and leave it for the sidecar's gaps."""
    log.once("room", why)
    withhold(session.torch_servers / str(os.getpid()), why)
