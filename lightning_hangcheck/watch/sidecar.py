"""The sidecar as a program, with a session's folder: started by `starting`, never by hand."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.files.apart import let_go_of_streams
from lightning_hangcheck.files.atomic import PRIVATE_FILE, write_atomically
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.probes.proc.process_tree import process_ref
from lightning_hangcheck.session.session import Session, SidecarFacts, read_session
from lightning_hangcheck.settings import from_environment
from lightning_hangcheck.watch.service import Service

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Watch one session. What goes wrong ends the watching with one sentence, never the job."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher holds its signals back
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(arguments[0])
    try:
        session = read_session(folder)
        if not session.facts.launched:
            _leave_starter()
        if not _claim_watch(session):
            return 0
        log.start_writer()
        _announce(session)
    except (HangcheckError, OSError) as error:
        if not folder.exists():  # the job has ended already: its last rank freed what was shared
            return 0
        log.once("sidecar", f"the run is not watched: {error}")
        return 2
    try:
        service = Service(session, from_environment(os.environ))
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, service.told_to_end)
        service.run()
    except Exception as error:  # noqa: BLE001 - the sidecar's boundary: say it, leave the job alone
        log.once("sidecar", f"the sidecar failed, the run is no longer watched: {error!r}")
        return 1
    return 0


def _leave_starter() -> None:
    """Be no child of the rank that started us: its launcher may end that with all its children.

    Ray's workers do so as they exit (ray 2.60, RAY_kill_child_processes_on_worker_exit), and how
    the job ended would stay unsaid.
    """
    if os.fork():
        os._exit(0)


def _claim_watch(session: Session) -> bool:
    """Become the one sidecar of this session, for as long as this process lives.

    A round may ask for a sidecar while that of the round before is only being replaced.

    Returns:
        Whether no other watches it.

    Raises:
        OSError: The session is gone.
    """
    descriptor = os.open(session.watch_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def _announce(session: Session) -> None:
    """Name this process in the session, so that ranks allow it to read them and see its end.

    Raises:
        OSError: The session is gone.
    """
    me = process_ref(os.getpid())
    facts = SidecarFacts(pid=os.getpid(), started_ticks=me.started_ticks if me else 0)
    write_atomically(session.sidecar_file, encode(facts))


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    log.finish(log.LAST_WORDS_S)
    let_go_of_streams()
    sys.exit(exit_code)
