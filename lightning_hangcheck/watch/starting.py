"""Starting a sidecar: an ordinary child process in a session of its own."""

from __future__ import annotations

import subprocess
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.machine.own_thread import start_thread
from lightning_hangcheck.machine.room import NoRoom, require_room
from lightning_hangcheck.settings import environment_with

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

MODULE = "lightning_hangcheck.watch.sidecar"
TASKS = 24
"""Threads and processes of `hangcheck run` and its sidecar, while py-spy reads several ranks."""


def start_sidecar(session: Session, settings: Settings) -> None:
    """Start the sidecar of this node. It outlives us, and ends by itself with the job.

    Args:
        session: Of the job.
        settings: Handed on through the sidecar's environment.

    Raises:
        OSError: The process cannot be started, or a limit leaves it no room.
    """
    process = _spawn(session, settings, subprocess.DEVNULL)
    try:
        # it leaves us within half a second, see `sidecar`: no zombie stays
        start_thread(partial(_reap, process), "hangcheck-start")
    except NoRoom:
        process.wait()


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()


def start_linked_sidecar(session: Session, settings: Settings) -> subprocess.Popen[bytes]:
    """Start a sidecar that talks with its launcher over its standard input and output.

    Raises:
        OSError: The process cannot be started, or a limit leaves it no room.
    """
    return _spawn(session, settings, subprocess.PIPE)


def _spawn(session: Session, settings: Settings, pipe: int) -> subprocess.Popen[bytes]:
    """A process group of its own keeps Ctrl-C and a launcher's kill away: it must tell the end."""
    require_room(TASKS)
    return subprocess.Popen(
        own_command(MODULE, str(session.path)),
        stdin=pipe,
        stdout=pipe,
        env={**environment_with(environment_of_module(), settings), "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
    )
