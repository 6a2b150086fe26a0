"""Other programs' answers within a time limit: what they started ends with them.

SLURM is one that is asked: it knows which processes of this machine belong to a job of its own.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck.isolation.environment import own_environment, searched_folders
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LAST_GRACE_S = 1.0
POLL_S = 0.02


class ChildLate(Exception):
    """The program gave no answer in time and was killed."""


def answer_of(
    command: Sequence[str], time_limit_s: float, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end, with this as all of its environment.

    OSError where it cannot be started, ChildLate where it took longer and was killed with whatever
    it started; one that is stuck in the kernel is left behind.
    """
    process = _started(command, environment, subprocess.PIPE)
    try:
        output, complaint = process.communicate(timeout=time_limit_s)
    except subprocess.TimeoutExpired as error:
        raise ChildLate(f"no answer within {time_limit_s:.3g} s") from error
    finally:
        if process.poll() is None:
            _kill_group(process)
    return subprocess.CompletedProcess(process.args, process.returncode, output, complaint)


def run_to_its_end(
    command: Sequence[str],
    time_limit_s: float,
    environment: Mapping[str, str],
    output: int,
    complaint: int | None = None,
    *,
    most: int = resource.RLIM_INFINITY,
    given_up: threading.Event | None = None,
) -> int:
    """Run a program to its end; what it leaves in its process group ends then, too.

    Its texts go to one descriptor, or two, with at most so many bytes in each file. Once it is
    ``given_up`` it is killed as well. Raises as `answer_of`. The code of a signal is below 0.
    """
    process = _started(command, environment, output, complaint)
    deadline, given_up = time.monotonic() + time_limit_s, given_up or threading.Event()
    try:
        if most != resource.RLIM_INFINITY:
            with suppress(OSError, ValueError):  # it has ended, or has a lower limit
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
        # its end is waited for and not collected: so its group's number is given to nobody else
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, process.pid, flags) is None:
            if time.monotonic() >= deadline:
                raise ChildLate(f"no answer within {time_limit_s:.3g} s")
            if given_up.wait(POLL_S):
                raise ChildLate("it was interrupted")
    finally:
        _kill_group(process)
    return process.returncode


def _started(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    complaint: int | None = None,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output if complaint is None else complaint,
        env=dict(environment),
        start_new_session=True,
    )


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=LAST_GRACE_S)


SLURM_LIMIT_S = 5.0
COLUMNS = 3  # PID JOBID STEPID LOCALID GLOBALID; the last two are - for what a task started


def processes_of_job(environment: Mapping[str, str]) -> tuple[int, ...] | Gap:
    """Ask SLURM for the processes of the job in which we are a step, without that step's own.

    The environment of a step names job, step and node. None where the job has no other step here.
    """
    job, step = environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID", "")
    node = environment.get("SLURMD_NODENAME", "")

    def unknown(why: str) -> Gap:
        return Gap(f"processes of SLURM job {job}", None, why, remedy="name one of them with --pid")

    scontrol = shutil.which("scontrol", path=searched_folders("PATH"))
    if scontrol is None:
        return unknown("there is no scontrol here")
    told = {name: value for name, value in environment.items() if name == "SLURM_CONF"}
    command = [scontrol, "listpids", job, *([node] if node else [])]
    try:
        answer = answer_of(command, SLURM_LIMIT_S, own_environment() | told)
    except (ChildLate, OSError) as error:
        return unknown(f"scontrol: {error}")
    if answer.returncode:
        complaint = answer.stderr.decode(errors="replace").strip()
        return unknown(f"scontrol: {complaint or f'exit code {answer.returncode}'}")
    rows = [line.split() for line in answer.stdout.decode(errors="replace").splitlines()]
    return tuple(
        int(row[0])
        for row in rows
        if len(row) >= COLUMNS and row[0].isdecimal() and row[1] == job and row[2] != step
    )
