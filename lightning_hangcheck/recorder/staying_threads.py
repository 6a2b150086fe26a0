"""The threads that a recording process keeps, and what is told where there is no room for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.machine.room import NoRoom
from lightning_hangcheck.recorder.journal_writer import JournalWriter
from lightning_hangcheck.recorder.pulse import Pulse
from lightning_hangcheck.rundir.withheld import withhold

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.recorder.page_writer import PageWriter
    from lightning_hangcheck.recorder.sidecar_watch import SidecarWatch
    from lightning_hangcheck.rundir.layout import RunFolder
    from lightning_hangcheck.rundir.session import Session

NO_THREADS = "this rank starts no further threads of ours, training may need them: {}"


def start_journal(
    session: Session, identity: Identity, prepare: Callable[[], RunFolder]
) -> JournalWriter | None:
    """Start the journal; None where there is no room for its thread."""
    try:
        return JournalWriter(session, prepare, identity.rank, identity.ranks_here)
    except NoRoom as refusal:
        say_withheld(session, NO_THREADS.format(refusal))
        return None


def start_pulse(
    session: Session,
    identity: Identity,
    page: PageWriter,
    watch: SidecarWatch,
    errand: Callable[[], None],
) -> Pulse | None:
    """Start the pulse; None where there is no room: then the sidecar is looked for this once."""
    try:
        return Pulse(page, watch, errand, identity.ranks_here)
    except NoRoom as refusal:
        say_withheld(session, NO_THREADS.format(refusal))
        watch.look()
        return None


def say_withheld(session: Session, why: str) -> None:
    """Say once why something of ours was not started, and leave it for the sidecar's gaps."""
    log.once("room", why)
    withhold(session.torch_servers / str(os.getpid()), why)
