"""Records scripts that never heard of this package, when `hangcheck run` starts them.

Python imports ``sitecustomize`` from there before the script, in every process; the file decides
whether it is in a rank, and only then comes here. What wraps frameworks (wrapt, 60 ms) is imported
with the first of them: a rank that needs none does not pay for it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.hooks.zero_code.sections import passed
from lightning_hangcheck.model.rehearsal import VARIABLE as REHEARSAL
from lightning_hangcheck.recorder.lifecycle import current

INJECT_FOLDER = Path(__file__).parent / "inject"


def start() -> None:
    """Record this process from here on: its page, pulse, records, last words and exit."""
    be_watched(current())
    watch_exit()
    passed(1)


def watch_exit() -> None:
    """Show on the page when the interpreter begins to end.

    Python first calls what was registered with threading, then waits for threads that are no
    daemons, then calls exit handlers; an exit handler of ours would be the last of all.
    """
    # private, as nothing else is called that early (threading.py of 3.10 to 3.13)
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        register(current().begin_shutdown)


def watch(*, is_child: bool) -> None:
    """Have what frameworks do watched; called when the first of them is about to be imported.

    Args:
        is_child: Of multiprocessing: mostly a helper, a rank only once it joins a process group.
    """
    # imported here: it takes what a framework imports anyway, and other processes need not pay it
    from lightning_hangcheck.hooks.zero_code.groups.spawned import watch_children
    from lightning_hangcheck.hooks.zero_code.imports import watch_joining, watch_ranks

    if REHEARSAL in os.environ:
        from lightning_hangcheck.hooks.rehearsal.begin import begin

        begin()
    watch_joining()
    watch_children()
    if not is_child:
        watch_ranks()


def injected(python_path: str | None) -> str:
    """Return the PYTHONPATH with our folder in front.

    Args:
        python_path: As it is, None where it is not set.
    """
    return os.pathsep.join(filter(None, (str(INJECT_FOLDER), python_path)))
