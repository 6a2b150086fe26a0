"""Starting a sidecar: an ordinary child process in a session of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from lightning_hangcheck.settings import to_environment

if TYPE_CHECKING:
    from lightning_hangcheck.rundir.session import Session
    from lightning_hangcheck.settings import Settings

_started: list[subprocess.Popen[bytes]] = []
"""Kept, so that Python does not warn about children that outlive the object that started them."""


def start_sidecar(session: Session, settings: Settings) -> int:
    """Start the sidecar of this node. It ends by itself with the job.

    Args:
        session: Of the job.
        settings: Handed on through the sidecar's environment.

    Returns:
        Its process id.

    Raises:
        OSError: The process cannot be started.
    """
    process = _spawn(session, settings, subprocess.DEVNULL)
    _started.append(process)
    return process.pid


def start_tied_sidecar(session: Session, settings: Settings) -> subprocess.Popen[bytes]:
    """Start a sidecar that talks with its launcher over its standard input and output.

    Raises:
        OSError: The process cannot be started.
    """
    return _spawn(session, settings, subprocess.PIPE)


def _spawn(session: Session, settings: Settings, pipe: int) -> subprocess.Popen[bytes]:
    """A process group of its own keeps Ctrl-C and a launcher's kill away: it must tell the end."""
    environment = {**os.environ, **to_environment(settings), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [sys.executable, "-m", "lightning_hangcheck.sidecar", str(session.path)],
        stdin=pipe,
        stdout=pipe,
        env=environment,
        start_new_session=True,
    )
