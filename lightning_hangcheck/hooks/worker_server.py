"""The one door to torch's worker server, which is private: it answers what the probes ask.

Reached through ``sys.modules``, so nothing here imports torch; a torch that lacks it, or whose
names differ, only means that the rank has no flight record, and the probe says so.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.files.atomic import make_private_folder
from lightning_hangcheck.machine.room import NoRoom, require_room
from lightning_hangcheck.model.beat import STARTING_SERVER
from lightning_hangcheck.recorder.background import say_withheld
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.recorder.lifecycle import Recorder
    from lightning_hangcheck.session.session import Session

BINDINGS = "torch._C._distributed_c10d"
LONGEST_PATH = 107
"""Bytes that fit into sockaddr_un.sun_path with its zero (unix(7)); torch aborts on longer ones."""
THREADS = 1 + max(8, (os.cpu_count() or 1) - 1)
"""It listens with one and answers with the rest (cpp-httplib, CPPHTTPLIB_THREAD_POOL_COUNT), which
no affinity makes fewer. One that the kernel refuses aborts the process: nobody can catch that."""
SETTLES_FOR_S = 5.0
"""From torch's import on, where no group is made meanwhile: one may wait for a store by itself."""
SILENT = 3
"""c10's log level FATAL: the server announces itself on stderr at level WARNING."""


def offer_flight_record(recorder: Recorder) -> None:
    """Start torch's worker server in this rank once it is about to meet others.

    The pulse thread does it, within half a second of `init_process_group`, or seconds after torch
    is imported; training waits for nothing. A program that closes all descriptors does so before:
    it would close the server's, too, which ends the process (torch 2.13 throws in a thread). Once
    the process group is there the rank is no longer starting up, which its page says then.

    Args:
        recorder: Of this process; without a session there is nobody to answer.
    """
    session = recorder.session
    if session is None or recorder.on_pulse is not None:
        return
    path = session.torch_servers / str(os.getpid())
    tried, settled_at = False, None

    def errand() -> None:
        nonlocal tried, settled_at
        if not tried and bindings_are_there():
            settled_at = settled_at or time.monotonic() + SETTLES_FOR_S
            tried = recorder.meets_ranks or time.monotonic() >= settled_at
            if not tried:
                return
            with Section(recorder, STARTING_SERVER, spoken=False):
                _start_if_there_is_room(session, path, recorder.identity.ranks_here)
        if tried and sys.modules["torch.distributed"].is_initialized():
            recorder.on_pulse = _nothing_more
            recorder.leave_startup()

    recorder.on_pulse = errand


def _nothing_more() -> None:
    """All errands are done."""


def bindings_are_there() -> bool:
    """Whether torch and torch.distributed are imported, to their end."""
    return BINDINGS in sys.modules and all(map(_is_whole, ("torch", "torch.distributed")))


def _is_whole(package: str) -> bool:
    spec = getattr(sys.modules.get(package), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def _start_if_there_is_room(session: Session, path: Path, ranks: int) -> None:
    try:
        require_room(THREADS, ranks)
    except NoRoom as refusal:
        why = f"this rank offers no flight record, training may need its threads: {refusal}"
        say_withheld(session, why)
        return
    start_worker_server(path)


def start_worker_server(path: Path) -> bool:
    """Start the server on a unix socket.

    Args:
        path: Of the socket, in a folder that only this user may enter.

    Returns:
        Whether it runs. It runs until the process ends: in torch 2.13 neither ``shutdown`` nor the
        object's destructor ever returns, so the object is kept alive for ever.
    """
    if len(os.fsencode(path)) > LONGEST_PATH or path.exists():
        return False
    server_class = getattr(sys.modules.get(BINDINGS), "_WorkerServer", None)
    if server_class is None:
        return False
    try:
        make_private_folder(path.parent)
        with _without_announcement():
            server = server_class(str(path))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        log.once("worker-server", f"no flight record of this rank can be read: {error!r}")
        return False
    _keep_for_ever(server)
    return True


def _keep_for_ever(thing: object) -> None:
    """Take a reference that is never given back, so that no destructor runs, not even at exit."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


@contextmanager
def _without_announcement() -> Iterator[None]:
    """Keep c10 from logging for about 0.3 ms: the program's output must not change."""
    import ctypes

    library = Path(str(sys.modules["torch"].__file__)).parent / "lib" / "libc10.so"
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):  # a torch built otherwise: one line is announced
        yield
        return
    before = level.value
    level.value = SILENT
    try:
        yield
    finally:
        level.value = before
