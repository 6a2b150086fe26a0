"""Offers the stacks of this process to who may not read them: faulthandler on a real-time signal.

It is C code in a signal handler: it needs no interpreter lock, and answers while a thread keeps it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.files.safe import make_private_folder, open_for_append, write_atomically
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.session.session import StackOffer, offer_file

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session

FIRST = signal.SIGRTMIN + 9
LAST = signal.SIGRTMAX - 4
"""Numbers that may be taken. Profilers take the first few, and some runtimes the last."""


def offer_stacks(session: Session | None) -> None:
    """Have this process write its stacks when a free real-time signal comes; once, about 0.3 ms.

    No signal that anybody handles, ignores or blocks is taken. Else py-spy alone can read it.
    """
    if session is None or threading.current_thread() is not threading.main_thread():
        return
    own = read_process_stat(os.getpid())
    file = offer_file(session.path, os.getpid())
    if own is None or file.exists():
        return
    try:
        number = _free_signal()
        if number is not None:
            _answer(number, file, own.started_ticks)
    except (OSError, ValueError, RuntimeError) as error:
        log.once("stack-offer", f"only py-spy can read the stacks of this rank: {error!r}")


def _answer(number: int, file: Path, started_ticks: int) -> None:
    make_private_folder(file.parent)
    answers = file.with_suffix(".txt")
    # never closed: the handler writes to it until the process ends
    descriptor = open_for_append(answers)
    # what faulthandler gives back when the interpreter ends: by default the signal would kill
    signal.signal(number, signal.SIG_IGN)
    faulthandler.register(number, file=descriptor, all_threads=True, chain=False)
    offer = StackOffer(
        pid=os.getpid(),
        started_ticks=started_ticks,
        signal=number,
        main_thread=threading.main_thread().ident or 0,
        answers=str(answers),
    )
    write_atomically(file, encode(offer))
    atexit.register(_withdraw, file, answers, os.getpid())


def _withdraw(file: Path, answers: Path, pid: int) -> None:
    """Take the offer back at exit; a forked child leaves its parent's alone."""
    if os.getpid() == pid:
        with suppress(OSError):
            file.unlink(missing_ok=True)
            answers.unlink(missing_ok=True)


def _free_signal() -> int | None:
    taken = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigBlk", "SigIgn", "SigCgt"):
            taken |= int(mask, 16)
    return next((n for n in range(FIRST, LAST + 1) if not taken >> (n - 1) & 1), None)
