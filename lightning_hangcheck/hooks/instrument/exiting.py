"""The end of the interpreter: threads that are waited for, exit handlers, teardown."""

from __future__ import annotations

import threading

from lightning_hangcheck.recorder.recording import current


def watch_exit() -> None:
    """Show on the page when the interpreter begins to end.

    Python first calls what was registered with threading, then waits for threads that are no
    daemons, then calls exit handlers; an exit handler of ours would be the last of all.
    """
    # private, as nothing else is called that early (threading.py of 3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)
