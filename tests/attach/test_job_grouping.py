"""Which processes of a machine are one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.attach.job_search import (
    Candidate,
    FoundJob,
    find_jobs,
    group_jobs,
    look_around,
    rendezvous_of,
)
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


def pids(jobs: tuple[FoundJob, ...]) -> list[dict[int, int]]:
    return [{rank.rank: rank.pid for rank in job.ranks} for job in jobs]


def test_ranks_that_meet_at_one_port_are_one_job() -> None:
    tree = [candidate(10, 1), torchrun(11, 10, 0, 29500), torchrun(12, 10, 1, 29500)]
    (job,) = group_jobs(tree)
    assert pids((job,)) == [{0: 11, 1: 12}]
    assert job.world_size == 2


def test_two_jobs_are_told_apart_by_their_ports() -> None:
    first = [torchrun(11, 10, 0, 29500), torchrun(12, 10, 1, 29500)]
    second = [torchrun(21, 20, 0, 29501), torchrun(22, 20, 1, 29501)]
    assert pids(group_jobs([*second, *first])) == [{0: 11, 1: 12}, {0: 21, 1: 22}]


def test_two_containers_may_use_one_port() -> None:
    names = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29500"}
    tree = [candidate(11, 1, "pid:[1]", **names), candidate(21, 1, "pid:[2]", **names)]
    assert pids(group_jobs(tree)) == [{0: 11}, {0: 21}]


def test_two_jobs_that_claim_one_port_are_told_apart_by_their_parents() -> None:
    first = [torchrun(11, 10, 0, 29500), torchrun(12, 10, 1, 29500)]
    second = [torchrun(21, 20, 0, 29500), torchrun(22, 20, 1, 29500)]
    assert pids(group_jobs([*first, *second])) == [{0: 11, 1: 12}, {0: 21, 1: 22}]


def test_workers_belong_to_their_rank() -> None:
    tree = [torchrun(11, 10, 0, 29500), torchrun(31, 11, 0, 29500), torchrun(12, 10, 1, 29500)]
    assert pids(group_jobs(tree)) == [{0: 11, 1: 12}]


def test_lightnings_rank_0_carries_no_variables() -> None:
    child = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "40000"}
    tree = [candidate(9, 1), candidate(10, 9), candidate(11, 10, **child)]
    assert pids(group_jobs(tree)) == [{0: 10, 1: 11}]


def test_torchrun_inside_a_slurm_step_is_no_rank() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    tree = [
        candidate(10, 1, **step),
        torchrun(11, 10, 0, 29500, **step),
        torchrun(12, 10, 1, 29500, **step),
    ]
    assert pids(group_jobs(tree)) == [{0: 11, 1: 12}]


def test_slurm_tasks_of_one_step_are_one_job() -> None:
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
    tasks = [
        candidate(11 + task, 1, SLURM_PROCID=str(task), SLURM_LOCALID=str(task), **step)
        for task in (0, 1)
    ]
    assert pids(group_jobs(tasks)) == [{0: 11, 1: 12}]


def test_nothing_is_a_job_without_a_launchers_variables() -> None:
    assert group_jobs([candidate(10, 1), candidate(11, 10)]) == ()


def test_daemons_that_a_slurm_task_started_are_no_job_beside_that_of_their_actors() -> None:
    """``srun ray start --block``: what an actor was given later is its present environment."""
    task = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    daemons = [candidate(pid, parent, **task) for pid, parent in ((10, 1), (11, 10), (12, 11))]
    given = {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40001"}
    actors = [candidate(13 + rank, 11, **task, **given, RANK=str(rank)) for rank in (0, 1)]
    assert pids(group_jobs([*daemons, *actors])) == [{0: 13, 1: 14}]


def test_ranks_that_were_numbered_late_are_one_job(program: StartProgram, tmp_path: Path) -> None:
    """They have torch in their memory, as it seems; who has not is not asked for it."""
    library = tmp_path / "libtorch.so"
    library.write_bytes(b"\0" * 4096)
    ranks = [program("numbered_late.py", "loads", str(library), str(rank)) for rank in (0, 1)]
    other = program("numbered_late.py")
    machine = look_around()
    (job,) = find_jobs(machine, [ranks[1].pid])
    assert [(one.rank, one.pid, one.world_size) for one in job.ranks] == [
        (0, ranks[0].pid, 4),
        (1, ranks[1].pid, 4),
    ]
    assert machine.processes[other.pid].identity.rank is None
