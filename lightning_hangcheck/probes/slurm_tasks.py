"""Which processes of this machine belong to a SLURM job? SLURM itself says it, not their names."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from lightning_hangcheck.isolation.environment import own_environment, searched_folders
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.probes.bounded_child import ChildLate, answer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

LIMIT_S = 5.0
"""scontrol asks the slurmd of this machine, which answers in milliseconds."""
COLUMNS = 3
"""``PID JOBID STEPID LOCALID GLOBALID``; the last two are ``-`` for what a task started."""


def processes_of_job(environment: Mapping[str, str]) -> tuple[int, ...] | Gap:
    """Ask SLURM for the processes of the job in which we are a step, without that step's own.

    Args:
        environment: Of a step: it names job, step and node; SLURM_CONF where it is no usual one.

    Returns:
        Their process ids, none where the job has no other step on this node.
    """
    job, step = environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID", "")
    node = environment.get("SLURMD_NODENAME", "")
    scontrol = shutil.which("scontrol", path=searched_folders("PATH"))
    if scontrol is None:
        return _unknown(job, "there is no scontrol here")
    told = {name: value for name, value in environment.items() if name == "SLURM_CONF"}
    command = [scontrol, "listpids", job, *([node] if node else [])]
    try:
        answer = answer_of(command, LIMIT_S, own_environment() | told)
    except (ChildLate, OSError) as error:
        return _unknown(job, f"scontrol: {error}")
    if answer.returncode:
        complaint = answer.stderr.decode(errors="replace").strip()
        return _unknown(job, f"scontrol: {complaint or f'exit code {answer.returncode}'}")
    return _pids(answer.stdout.decode(errors="replace"), job, step)


def _pids(table: str, job: str, own_step: str) -> tuple[int, ...]:
    rows = [line.split() for line in table.splitlines()]
    return tuple(
        int(row[0])
        for row in rows
        if len(row) >= COLUMNS and row[0].isdecimal() and row[1] == job and row[2] != own_step
    )


def _unknown(job: str, why: str) -> Gap:
    return Gap(f"processes of SLURM job {job}", None, why, remedy="name one of them with --pid")
