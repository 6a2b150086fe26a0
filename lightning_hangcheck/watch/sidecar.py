"""The sidecar as a program: `link` starts it with a session's folder, never a user.

It watches until the job is over, reports the end, and leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import HangcheckError, UnpreparedRunFolder
from lightning_hangcheck.files import (
    PRIVATE_FILE,
    NoAnswerFromStorage,
    apart,
    encode_plain,
    let_go_of_streams,
    write_atomically,
)
from lightning_hangcheck.look.proc import process_ref
from lightning_hangcheck.session import run_folders
from lightning_hangcheck.session.session import (
    SidecarFacts,
    read_session,
)
from lightning_hangcheck.settings import from_environment
from lightning_hangcheck.watch.loop import Watcher

if TYPE_CHECKING:
    from collections.abc import Sequence


SETTLE_LIMIT_S = run_folders.CLAIMED_WITHIN_S + 1.0
"""Reading the folder takes milliseconds; the limit includes the wait for another node's claim."""
MOST_DESCRIPTORS = 65_536
"""Descriptors allowed to the sidecar if the hard limit has room. A rank takes five or more: 192
ranks used up the 1,024 that are a common soft limit."""
MOST_NEW_OBJECTS = 10_000
"""New objects between garbage collections; with Python's 700 a tick of 64 ranks makes several."""


def main(arguments: Sequence[str]) -> int:
    """Watch one session. An error ends the watching with one sentence, never the job."""

    def say_failed(failed: threading.ExceptHookArgs) -> None:
        name = failed.thread.name if failed.thread is not None else "a thread"
        log.once(f"thread {name}", f"{name} of the sidecar failed ({failed.exc_value!r})")

    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher blocks its signals
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.excepthook = say_failed
    os.set_blocking(sys.stdout.fileno(), False)  # a stopped launcher must not block us
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    folder = Path(arguments[0])
    try:
        session = read_session(folder)
        # do not stay a child of the rank that started us: its launcher may kill it with its
        # children, as Ray's workers do at exit (ray 2.60, RAY_kill_child_processes_on_worker_exit),
        # and nobody would report how the job ended
        if not session.facts.launched and os.fork():
            os._exit(0)
        # the only sidecar of this session while this process lives: a round may start a sidecar
        # before the one of the round before is replaced
        lock = os.open(session.watch_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        log.start_writer()
        # the session names the sidecar, so that ranks allow it to read them and notice its end
        me = process_ref(os.getpid())
        facts = SidecarFacts(pid=os.getpid(), started_ticks=me.started_ticks if me else 0)
        write_atomically(session.sidecar_file, encode_plain(facts))
    except (HangcheckError, OSError) as error:
        if not folder.exists():  # the job is over: its last rank removed the session
            return 0
        log.once("sidecar", f"the run is not watched: {error}")
        return 2
    try:
        folder_of_run, trouble = session.run_folder, ""
        try:
            try:
                folder_of_run, trouble = apart(
                    SETTLE_LIMIT_S, partial(run_folders.settle_run_folder, session)
                )
            except NoAnswerFromStorage as error:
                folder_of_run, trouble = run_folders.settle_elsewhere(session, error)
        except (OSError, UnpreparedRunFolder) as error:
            trouble = f"verdicts are printed but not saved: {error}"
        if trouble:
            log.once("run folder", trouble)
        settings = from_environment(os.environ)
        if not session.facts.launched and settings.on_hang != "report":
            why = f"HANGCHECK_ON_HANG={settings.on_hang} needs hangcheck run: hangs are reported"
            log.once("on hang", f"{why}, and the job is not ended")
            settings = replace(settings, on_hang="report")
        sidecar = Watcher(session, settings, folder_of_run)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, sidecar.asked_to_end)
        # imported objects stay: searching them for garbage took a fifth of a tick
        gc.freeze()
        gc.set_threshold(MOST_NEW_OBJECTS)
        sidecar.run()
    except Exception as error:  # noqa: BLE001 - the sidecar's boundary: say it, leave the job alone
        log.once("sidecar", f"the sidecar failed, the run is no longer watched: {error!r}")
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # do not wait for threads of a pending look, nor for processes that they started
    log.finish(log.LAST_WORDS_S)
    let_go_of_streams()
    for child in psutil.Process().children():
        child.kill()
    os._exit(code)
