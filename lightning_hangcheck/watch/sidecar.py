"""The sidecar as a program, with a session's folder: started by `starting`, never by hand."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import HangcheckError
from lightning_hangcheck.files.apart import let_go_of_streams
from lightning_hangcheck.session.session import read_session
from lightning_hangcheck.settings import from_environment
from lightning_hangcheck.watch.service import Service, announce, claim_watch

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """Watch one session. What goes wrong ends the watching with one sentence, never the job."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the launcher holds its signals back
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    folder = Path(arguments[0])
    try:
        session = read_session(folder)
        if not claim_watch(session):
            return 0
        announce(session)
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


if __name__ == "__main__":
    exit_code = main(sys.argv[1:])
    let_go_of_streams()
    sys.exit(exit_code)
