"""The recording process: what it is, what the recorder learns from it, and which thread trains.

The pulse thread shows that the interpreter runs, and what only the rank knows of its wait (signal
handlers, coroutine, exception), and watches the sidecar. Without room for a thread, a gap says so.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without slow enumerations
import atexit
import functools
import os
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType

from lightning_hangcheck import log
from lightning_hangcheck.machine import NoRoom, ancestors, is_alive, read_proc, start_thread
from lightning_hangcheck.model.code_owner import (
    TRAINING,
    is_standard,
    is_users,
    only_serves,
    owner_of,
)
from lightning_hangcheck.recorder.announcer import attempt, last_words
from lightning_hangcheck.recorder.page import Call
from lightning_hangcheck.session.session import read_sidecar, withhold
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown import DISTRIBUTIONS, published_environment, show_command

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.recorder.page import PageWriter
    from lightning_hangcheck.session.session import Session, SidecarFacts

    Started = TypeVar("Started")


YAMA_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
# linux/prctl.h: "Yama" in ASCII
_PR_SET_PTRACER = 0x59616D61
INTERVAL_S = 0.5


@functools.cache  # once: a forked child inherits it
def report_ends(
    on_uncaught: Callable[[BaseException], object],
    on_exit: Callable[[], object],
    on_fork: Callable[[], object],
    on_thread: Callable[[str, BaseException], object],
) -> None:
    """Call back on the program's last exception, at exit (maybe twice), and in a forked child.

    ``on_thread`` is told the name of a thread that an exception has ended, and the exception.
    """
    atexit.register(on_exit)
    os.register_at_fork(after_in_child=on_fork)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            on_uncaught(error)
        finally:
            before(kind, error, trace)

    sys.excepthook = hook
    of_thread_before = threading.excepthook

    def of_thread(ended: threading.ExceptHookArgs) -> None:
        try:
            if ended.exc_value is not None and ended.thread is not None:
                on_thread(ended.thread.name, ended.exc_value)
        finally:
            of_thread_before(ended)

    threading.excepthook = of_thread


def report_end_of_child(
    on_uncaught: Callable[[BaseException], object], on_exit: Callable[[], object]
) -> None:
    """The same for a child of multiprocessing, which exits its own way; too late from 3.13 on."""
    from multiprocessing.util import Finalize  # imported already in such a child

    def end() -> None:  # called in the `finally` of multiprocessing's bootstrap
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # torch's wrapper calls sys.exit(1) while it handles an exception
            error = error.__context__ if error.code else None
        if error is not None:
            on_uncaught(error)
        on_exit()

    Finalize(None, end, exitpriority=0)


def is_helper(pages: Path, identity: Identity) -> bool:
    """Whether an ancestor records, and this process has no other rank than that ancestor."""
    for pid in ancestors(os.getpid()):
        if not (pages / f"{pid}.page").exists():
            continue
        # imported here: what reads pages takes 15 ms, and most ranks have no such ancestor
        from lightning_hangcheck.model.beat import Beat
        from lightning_hangcheck.recorder.page_reader import PageReader

        reader = PageReader(pages / f"{pid}.page")
        page = reader.read()
        reader.close()
        if isinstance(page, Beat):
            claimed = (identity.rank, identity.local_rank)
            return claimed in ((None, None), (page.rank, page.local_rank))
    return False


def start_facts(environment: Mapping[str, str], identity: Identity) -> dict[str, object]:
    """Return who and where this process is, redacted. Imports nothing."""
    folder = ""
    with suppress(OSError):  # it was removed
        folder = os.getcwd()  # noqa: PTH109 - pathlib takes 4 ms
    names = ("rank", "world_size", "local_rank", "round", "launcher")
    return {name: getattr(identity, name) for name in names} | {
        "host": os.uname().nodename,
        "command": show_command(sys.orig_argv),
        "folder": folder,
        "versions": versions(),
        "environment": redact_values(published_environment(environment)),
    }


def versions() -> dict[str, str]:
    """Return versions of Python, this package and the frameworks imported so far."""
    modules = {name: sys.modules.get(name.replace("-", "_")) for name in DISTRIBUTIONS}
    return {"python": sys.version.split()[0]} | {
        name.replace("-", "_"): str(getattr(module, "__version__", "unknown"))
        for name, module in modules.items()
        if module is not None
    }


class Pulse:
    """Writes the clock to the page twice a second and watches the sidecar, if its thread starts."""

    # A sidecar that leaves on purpose removes its file first. So only a killed sidecar is reported,
    # and only if its keeper has not replaced it within ``patience_s``.

    def __init__(
        self,
        page: PageWriter,
        file: Path,
        on_lost: Callable[[int], None],
        patience_s: Callable[[], float],
        task: Callable[[], None],
    ) -> None:
        self._page, self._file, self._task = page, file, task
        self._on_lost, self._patience_s = on_lost, patience_s
        self._known: SidecarFacts | None = None
        self._lost: SidecarFacts | None = None
        self._gone_since: float | None = None
        self._handled, self._words = 0, ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ranks: int) -> Pulse:
        """Start the thread; `NoRoom` if ``ranks`` of this machine leave no room for it."""
        self._thread = start_thread(self._run, "hangcheck-pulse", ranks)
        self._page.pulse()
        return self

    def stop(self, limit_s: float) -> None:
        """End the thread, and wait for that up to ``limit_s``."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._page.pulse()
            attempt("telling signal handlers and coroutines", self._show_wait)
            attempt("looking after the sidecar", self.look)
            attempt("offering torch's flight record", self._task)

    def _show_wait(self) -> None:
        self._page.show_wait(handled_signals(), awaiting(), self._handling())

    def _handling(self) -> str:
        """Return the exception that the main thread handles, if it did at the last pulse too."""
        found: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)  # noqa: SLF001
        error = found[1] if isinstance(found, tuple) else found  # before Python 3.12
        known, self._handled = self._handled, id(error)
        if error is None or self._handled != known:
            self._words = ""
        elif not self._words:
            self._words = last_words(error)
        return self._words

    def look(self) -> None:
        """Look for the sidecar once, about 50 microseconds."""
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
    """Let one process, and its children such as py-spy, read this process under Yama."""
    # With Yama's ptrace_scope 1, the default of Ubuntu, only an ancestor, or a process that is
    # named here, may read a process (Documentation/admin-guide/LSM/Yama.rst).
    with suppress(OSError, AttributeError):  # a kernel without Yama, a libc without prctl
        if read_proc(YAMA_SCOPE).strip() == b"1":
            import ctypes  # 5 ms in the pulse thread, only on kernels with Yama

            numbers = (ctypes.c_ulong(number) for number in (pid, 0, 0, 0))
            ctypes.CDLL(None).prctl(_PR_SET_PTRACER, *numbers)


def unless_no_room(session: Session, start: Callable[[], Started]) -> Started | None:
    """Start something that needs a thread; if there is no room, log that and return None."""
    try:
        return start()
    except NoRoom as refusal:
        none = "this rank starts no further threads of ours, training may need them"
        say_withheld(session, f"{none}: {refusal}")
        return None


def say_withheld(session: Session, why: str) -> None:
    """Log once why something of ours was not started, and leave that as a gap for the sidecar."""
    log.once("room", why)
    withhold(session.torch_servers / str(os.getpid()), why)


class TrainingEnd:
    """How training ended in a thread: whether its outermost call returned, and at which line."""

    # The thread holds this object, and releases it as it ends.

    def __init__(self, call: FrameType, tell: Callable[[bool, Call], None]) -> None:
        from opcode import opname  # here: such threads are rare

        self._call, self._tell, self._opname = call, tell, opname

    def __del__(self) -> None:
        if not sys.is_finalizing():
            call, code = self._call, self._call.f_code
            well = self._opname[code.co_code[call.f_lasti]].startswith("RETURN_")
            self._tell(well, Call(code.co_name, code.co_filename, call.f_lineno))


class TrainingThread:
    """The main thread; if that only serves others, the first other thread that asks."""

    # A process that serves others does not exit after training: a Ray Train actor lives until the
    # last rank is done, and is then killed (ray 2.60, train/v2/_internal/execution/worker_group/
    # thread_runner.py). So the thread's end counts as the rank's; its outermost call's last
    # instruction shows how it ended.

    def __init__(self, on_end: Callable[[bool, Call], None]) -> None:
        self._on_end = on_end
        self._found: threading.Thread | None = None
        self._kept_by_thread = threading.local()

    @property
    def trains_in_another_thread(self) -> bool:
        """Whether a thread other than the main thread trains, and has not ended."""
        return self._found is not None and self._found.is_alive()

    def is_here(self) -> bool:
        """Whether the calling thread trains; 0.1 microseconds in the main thread."""
        if threading.get_ident() == threading.main_thread().ident:
            return True
        if self._found is None:
            self.begins_here()
        return self._found is threading.current_thread()

    def begins_here(self) -> bool:
        """Take the calling thread as the training thread, if possible; return whether it is new."""
        here, main = threading.current_thread(), threading.main_thread()
        if here is main or self.trains_in_another_thread:
            return False
        calls = sys._current_frames().get(main.ident or 0)  # noqa: SLF001
        serving = [
            (outward.f_code.co_name, outward.f_code.co_filename) for outward in _outwards(calls)
        ]
        if not only_serves(serving):
            return False
        self._found = here
        # find the outermost call here that is not of the main thread's packages, which started it
        packages = {owner_of(file) for _, file in serving}
        for call in reversed(list(_outwards(sys._getframe()))):  # noqa: SLF001
            file = call.f_code.co_filename
            if not is_standard(file) and owner_of(file) not in packages:
                self._kept_by_thread.end = TrainingEnd(call, self._on_end)
                break
        return True


def _outwards(call: FrameType | None) -> Iterator[FrameType]:
    while call is not None:
        yield call
        call = call.f_back


# What only the rank itself knows of its wait

SENT_BY_PROGRAMS = (
    *(signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGCHLD),
    *(signal.SIGHUP, signal.SIGCONT),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
MOST_HANDLERS = 64  # objects that are inspected: a handler may call the previous handler, and so on
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals whose handlers mostly end the program, or note that it should end."""
ENDED_BY = {
    "wait": {"set", "notify", "notify_all", "abort"},
    "wait_for": {"notify", "notify_all"},
    "acquire": {"release"},
    "get": {"put", "put_nowait"},
}
"""Calls of `threading` and `queue`, and what a handler calls to end them."""


def handled_signals() -> tuple[int, ...]:
    """Return the signals whose Python handlers may end a wait; about 10 microseconds."""
    # A handler in C, such as faulthandler's, sets no event. A training framework's handler, such as
    # Lightning's for SLURM or a DataLoader's for its workers, serves only the framework, unless it
    # calls somebody else's handler. A SIGHUP handler that is also SIGTERM's ends the program.
    found = {number: signal.getsignal(number) for number in SENT_BY_PROGRAMS}
    if found[signal.SIGHUP] == signal.getsignal(signal.SIGTERM):
        del found[signal.SIGHUP]
    ends = _ends_of_main_wait()
    ending = (number for number in ENDING if ends and _calls_any(signal.getsignal(number), ends))
    others = (number for number, handler in found.items() if _is_of_others(handler))
    return tuple(dict.fromkeys(map(int, (*others, *ending))))


def _ends_of_main_wait() -> set[str]:
    """Return which calls end the main thread's wait in the interpreter's library, if any do."""
    frame, outermost = sys._current_frames().get(threading.main_thread().ident or 0), ""  # noqa: SLF001
    for call in islice(_outwards(frame), DEEPEST):
        file = call.f_code.co_filename
        if file.endswith("/selectors.py"):
            return {LOOPS_HANDLER}
        if not file.endswith(("/threading.py", "/queue.py")):
            break
        outermost = call.f_code.co_name
    return ENDED_BY.get(outermost, set())


LOOPS_HANDLER = "_sighandler_noop"
"""Of asyncio: a loop's ``add_signal_handler`` wakes the loop, which then calls what was given."""


def _calls_any(handler: object, names: set[str]) -> bool:
    """Whether a handler's code, or what it calls of its own class or file, calls any of these."""
    pending = [handler]
    for callback in islice(pending, MOST_HANDLERS):
        if isinstance(callback, functools.partial):
            pending.append(callback.func)
        function = getattr(callback, "__func__", callback)
        if not isinstance(function, FunctionType) or not is_users(function.__code__.co_filename):
            if getattr(function, "__name__", "") in names & {LOOPS_HANDLER}:
                return True
            continue
        called = function.__code__.co_names
        if not names.isdisjoint(called):
            return True
        owner = getattr(callback, "__self__", None)
        pending += [function.__globals__.get(name) for name in called]
        pending += [getattr(type(owner), name, None) for name in called if owner is not None]
    return False


def _is_of_others(handler: object) -> bool:
    pending = [handler]
    for number, callback in enumerate(pending):
        if number >= MOST_HANDLERS or isinstance(callback, BuiltinFunctionType):
            return True
        if isinstance(callback, FunctionType):
            owner = owner_of(callback.__code__.co_filename)
            if owner.kind != "ours" and owner.package not in TRAINING:
                return True
            pending += [cell.cell_contents for cell in callback.__closure__ or ()]
        elif isinstance(callback, MethodType):
            pending.append(callback.__func__)
        elif isinstance(callback, functools.partial):
            pending += [callback.func, *callback.args]
        elif isinstance(callback, (list, tuple)):
            pending += callback
        elif callable(callback):
            called = type(callback).__call__
            if not isinstance(called, FunctionType) or _is_of_others(called):
                return True
            pending += vars(callback).values()
    return False


DEEPEST = 100  # most calls and coroutines to walk through


def awaiting() -> list[Call]:
    """Return the user's calls in the coroutine that the main thread's event loop runs."""
    # No stack shows them while the loop waits: a coroutine that awaits is in no thread. Of several
    # gathered coroutines, the first that has not ended counts. About 10 microseconds.
    frame = sys._current_frames().get(threading.main_thread().ident or 0)  # noqa: SLF001
    if "asyncio" not in sys.modules or frame is None:
        return []
    if not frame.f_code.co_filename.endswith("/selectors.py"):
        return []
    run = (
        caller
        for caller in islice(_outwards(frame), DEEPEST)
        if caller.f_code.co_name == "run_until_complete"
        and "/asyncio/" in caller.f_code.co_filename
    )
    task: Any = next((frame.f_locals.get("future") for frame in run), None)
    found: list[Call] = []
    for _ in range(DEEPEST):
        inner = task.get_coro() if hasattr(task, "get_coro") else None
        near: list[Any] = []  # other tasks that it may wait for
        while inner is not None and len(found) < DEEPEST:
            frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
            code = frame.f_code if frame is not None else None
            if frame is not None and code is not None and is_users(code.co_filename):
                function = getattr(code, "co_qualname", code.co_name)
                found.append(Call(function, code.co_filename, frame.f_lineno))
            elif frame is not None and "/asyncio/" in frame.f_code.co_filename:
                # arguments of `wait_for`, `wait` and a task group
                group = getattr(frame.f_locals.get("self"), "_tasks", ())
                near = [*frame.f_locals.values(), group]
            inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
        awaited = getattr(task, "_fut_waiter", None)
        near = [awaited, getattr(awaited, "_children", ()), *near]
        of_many = [
            list(awaited) if isinstance(awaited, (list, set, tuple)) else [awaited]
            for awaited in near
        ]
        tasks = (
            awaited for several in of_many for awaited in several if hasattr(awaited, "get_coro")
        )
        task = next(
            (awaited for awaited in tasks if awaited is not task and not awaited.done()), None
        )
        if task is None:
            break
    return found
