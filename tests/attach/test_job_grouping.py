"""Which processes of a machine are one job."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from lightning_hangcheck.attach.job_search import (
    Candidate,
    Machine,
    find_jobs,
    group_jobs,
    jobs_of_step,
    look_around,
    rendezvous_of,
)
from lightning_hangcheck.errors import NoJobFound
from lightning_hangcheck.identity import identify

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram


def candidate(pid: int, parent: int, namespace: str = "pid:[1]", **environment: str) -> Candidate:
    return Candidate(
        pid=pid,
        parent_pid=parent,
        started_ticks=pid,
        python=True,
        identity=identify(environment),
        rendezvous=rendezvous_of(environment, namespace),
        slurm_job=environment.get("SLURM_JOB_ID", ""),
    )


def torchrun(pid: int, parent: int, rank: int, port: int, **more: str) -> Candidate:
    return candidate(
        pid,
        parent,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        MASTER_ADDR="node0",
        MASTER_PORT=str(port),
        TORCHELASTIC_RUN_ID="none",
        **more,
    )


def joined(pid: int, parent: int) -> Candidate:
    """A process in which torch runs a process group, and no variable tells why."""
    return msgspec.structs.replace(candidate(pid, parent), joined=True)


def pair(first: int, parent: int, port: int = 29500, **more: str) -> list[Candidate]:
    """Ranks 0 and 1 of a torchrun."""
    return [torchrun(first + rank, parent, rank, port, **more) for rank in (0, 1)]


ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29500"}
CHILD = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "40000"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}
ONE_TASK = {**STEP, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
GIVEN = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40001"}
JOBS: dict[str, tuple[list[Candidate], list[dict[int, int]]]] = {
    "two jobs, by their ports": (
        [*pair(21, 20, 29501), *pair(11, 10)],
        [{0: 11, 1: 12}, {0: 21, 1: 22}],
    ),
    "two containers may use one port": (
        [candidate(11, 1, "pid:[1]", **ALONE), candidate(21, 1, "pid:[2]", **ALONE)],
        [{0: 11}, {0: 21}],
    ),
    "workers belong to their rank": ([*pair(11, 10), torchrun(31, 11, 0, 29500)], [{0: 11, 1: 12}]),
    "Lightning's rank 0 carries no variables": (
        [candidate(9, 1), candidate(10, 9), candidate(11, 10, **CHILD)],
        [{0: 10, 1: 11}],
    ),
    "torchrun inside a SLURM step is no rank": (
        [candidate(10, 1, **ONE_TASK), *pair(11, 10, **ONE_TASK)],
        [{0: 11, 1: 12}],
    ),
    "SLURM tasks of one step": (
        [
            candidate(
                11 + n, 1, **STEP, SLURM_NTASKS="2", SLURM_PROCID=str(n), SLURM_LOCALID=str(n)
            )
            for n in (0, 1)
        ],
        [{0: 11, 1: 12}],
    ),
    "nothing without a launcher's variables": ([candidate(10, 1), candidate(11, 10)], []),
    # torch.multiprocessing.spawn starts a resource tracker, too
    "spawned ranks show a process group alone, and are counted": (
        [candidate(10, 1), candidate(11, 10), joined(13, 10), joined(12, 10), candidate(14, 12)],
        [{0: 12, 1: 13}],
    ),
    "a script that is rank 0 itself, and starts the others": (
        [joined(10, 1), joined(11, 10), joined(12, 10)],
        [{0: 10, 1: 11, 2: 12}],
    ),
    # `srun ray start --block`: what an actor was given later is its present environment
    "daemons that a SLURM task started are none beside their actors": (
        [
            *(candidate(pid, pid - 1, **ONE_TASK) for pid in (10, 11, 12)),
            *(candidate(13 + n, 11, **ONE_TASK, **GIVEN, RANK=str(n)) for n in (0, 1)),
        ],
        [{0: 13, 1: 14}],
    ),
}


@pytest.mark.parametrize("case", JOBS)
def test_which_processes_are_one_job(case: str) -> None:
    tree, expected = JOBS[case]
    jobs = group_jobs(tree)
    assert [{rank.rank: rank.pid for rank in job.ranks} for job in jobs] == expected


def test_in_a_step_of_a_slurm_job_only_that_job_counts() -> None:
    tree = [
        *pair(11, 10, 29501, SLURM_JOB_ID="7"),
        *pair(21, 20, 29502, SLURM_JOB_ID="8"),
        *pair(31, 30, 29503),
    ]
    machine = Machine({process.pid: process for process in tree}, frozenset())
    (job,) = jobs_of_step(machine, STEP)
    assert job.pids == {11, 12}
    assert not jobs_of_step(machine, {"SLURM_JOB_ID": "7"}), "we are no step of it"
    with pytest.raises(NoJobFound, match="SLURM job 9"):
        jobs_of_step(machine, {**STEP, "SLURM_JOB_ID": "9"})


def test_ranks_that_were_numbered_late_are_one_job(program: StartProgram, tmp_path: Path) -> None:
    """They have torch in their memory, as it seems; who has not is not asked for it."""
    library = tmp_path / "libtorch.so"
    library.write_bytes(b"\0" * 4096)
    ranks = [program("numbered_late.py", "loads", str(library), str(rank)) for rank in (0, 1)]
    other = program("numbered_late.py", "hangcheck")  # an argument, not its program
    machine = look_around()
    (job,) = find_jobs(machine, [ranks[1].pid])
    assert [(one.rank, one.pid, one.world_size) for one in job.ranks] == [
        (0, ranks[0].pid, 4),
        (1, ranks[1].pid, 4),
    ]
    assert machine.processes[other.pid].identity.rank is None


STARTS_ONE = """
import subprocess, sys

child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
input()
"""


def test_what_a_launcher_starts_without_a_number_is_the_rank_and_not_the_launcher(
    tmp_path: Path,
) -> None:
    """`accelerate launch` does so for one process."""
    (tmp_path / "accelerate").write_text(STARTS_ONE)
    command = [sys.executable, str(tmp_path / "accelerate"), "launch", "train.py"]
    pipe = subprocess.PIPE
    launcher = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    try:
        child = int(launcher.stdout.readline())
        (job,) = find_jobs(look_around(), [launcher.pid])
        assert [rank.pid for rank in job.ranks] == [child]
    finally:
        launcher.communicate("\n", timeout=20)
