"""How a rank finds the session of its job, whoever launched it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.rundir import RunFolder, folder_of_node, name_run_folder
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    SessionFacts,
    new_key,
    open_session,
    read_session,
    session_folder,
)
from lightning_hangcheck.session.whose import agent_pid, job_key, node_key
from lightning_hangcheck.text.shown import show_command, utc_now

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from lightning_hangcheck.identity import Identity


def join_session(
    environment: MutableMapping[str, str], identity: Identity, run_dir: str | None
) -> Session:
    """Join the job's session, or open it.

    A round that follows joins the session of the one before, and with it its run folder. A process
    without a launcher opens a new one and exports it in ``environment``, so that the
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
        return _named_session(Path(named), identity)
    alone = identity.launcher in ("none", "lightning")
    # containers may share this memory, and have equal numbers of processes and of SLURM's steps
    key = new_key() if alone else f"{node_key(environment, identity)}-{which_machine()}"
    facts = SessionFacts(
        run_dir=str(_run_folder(run_dir, identity).path),
        command=show_command(sys.orig_argv),
        started_at=utc_now("microseconds"),
        job=job_key(environment, identity),
        root_pid=_root_pid(environment, identity),
        numbered=not alone,
        restarts=identity.launcher == "torchrun",
    )
    session = open_session(session_folder(key), facts)
    if alone:
        environment[SESSION_VARIABLE] = str(session.path)
    return session


def _named_session(folder: Path, identity: Identity) -> Session:
    """Read the session that `hangcheck run` named: in front of `srun` it is on another machine."""
    if identity.launcher == "slurm" and not folder.exists():
        raise UnreadableRun(
            f"{folder} is not on this machine, where hangcheck run was not started",
            "put it behind srun: srun hangcheck run -- python train.py",
        )
    return read_session(folder)


def _run_folder(run_dir: str | None, identity: Identity) -> RunFolder:
    """All nodes of a job are given the same; each but the first takes a folder below that."""
    if identity.node_rank and run_dir is not None:
        return folder_of_node(run_dir, str(identity.node_rank))
    return name_run_folder(run_dir)


def _root_pid(environment: Mapping[str, str], identity: Identity) -> int:
    if identity.launcher == "torchrun":
        return agent_pid(environment)
    return os.getpid() if identity.launcher in ("none", "lightning") else os.getppid()
