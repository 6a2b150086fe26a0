"""How a rank finds the session of its job, whoever launched it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.rundir import folder_of_node, name_run_folder
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
    from collections.abc import MutableMapping

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
        # in front of srun, `hangcheck run` named a session of another machine
        if identity.launcher == "slurm" and not Path(named).exists():
            raise UnreadableRun(
                f"{named} is not on this machine, where hangcheck run was not started",
                "put it behind srun: srun hangcheck run -- python train.py",
            )
        return read_session(Path(named))
    alone = identity.launcher in ("none", "lightning")
    # containers may share this memory, and have equal numbers of processes and of SLURM's steps
    key = new_key() if alone else f"{node_key(environment, identity)}-{which_machine()}"
    folder = name_run_folder(run_dir)
    if identity.node_rank and run_dir is not None:
        # all nodes of a job are given the same; each but the first takes a folder below that
        folder = folder_of_node(run_dir, str(identity.node_rank))
    root_pid = os.getpid() if alone else os.getppid()
    facts = SessionFacts(
        run_dir=str(folder.path),
        command=show_command(sys.orig_argv),
        started_at=utc_now("microseconds"),
        job=job_key(environment, identity),
        root_pid=agent_pid(environment) if identity.launcher == "torchrun" else root_pid,
        numbered=not alone,
        restarts=identity.launcher == "torchrun",
    )
    session = open_session(session_folder(key), facts)
    if alone:
        environment[SESSION_VARIABLE] = str(session.path)
    return session
