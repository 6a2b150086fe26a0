"""How a rank finds the session of its job, whoever launched it."""

from __future__ import annotations

import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.model.shown_command import show_command
from lightning_hangcheck.rundir.layout import name_run_folder
from lightning_hangcheck.rundir.process_stat import read_process_stat
from lightning_hangcheck.rundir.session import (
    SESSION_VARIABLE,
    Session,
    SessionFacts,
    new_key,
    open_session,
    read_session,
    session_folder,
)

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from lightning_hangcheck.identity import Identity


def join_session(
    environment: MutableMapping[str, str], identity: Identity, run_dir: str | None
) -> Session:
    """Join the job's session, or open it.

    A process without a launcher opens a new one and exports it in ``environment``, so that the
    ranks that Lightning starts from there join it.

    Args:
        environment: Of this process; changed only as said above.
        identity: Of this process.
        run_dir: The folder that the user named, if any; a session that exists keeps its own.

    Raises:
        OSError: Shared memory cannot be used.
        UnreadableRun: The named session is gone or unreadable.
    """
    named = environment.get(SESSION_VARIABLE)
    if named:
        return read_session(Path(named))
    alone = identity.launcher in ("none", "lightning")
    root = os.getpid() if alone else os.getppid()
    key = new_key() if alone else _launcher_key(environment, identity, root)
    facts = SessionFacts(
        run_dir=str(name_run_folder(run_dir).path),
        command=show_command(sys.orig_argv),
        started_at=f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S.%fZ}",
        root_pid=root,
    )
    session = open_session(session_folder(key), facts)
    if alone:
        environment[SESSION_VARIABLE] = str(session.path)
    return session


def _launcher_key(
    environment: MutableMapping[str, str], identity: Identity, launcher_pid: int
) -> str:
    """A key that all ranks of this job on this node compute alike, and no other job's ranks."""
    if identity.launcher == "slurm":
        return f"slurm-{environment.get('SLURM_JOB_ID')}-{environment.get('SLURM_STEP_ID')}"
    if identity.launcher == "torchrun":
        restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
        launcher = read_process_stat(launcher_pid)
        return f"torchrun-{launcher_pid}-{launcher.started_ticks if launcher else 0}-{restart}"
    return f"port-{environment.get('MASTER_PORT', '0')}-session-{os.getsid(0)}"
