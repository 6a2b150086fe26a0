"""Which processes are ranks and which are launchers, under each launcher."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from processes import until

from lightning_hangcheck.hooks import zero_code
from lightning_hangcheck.identity import identify
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.observe.discovery import (
    LAUNCHERS,
    Pages,
    ProcessTree,
    SeenProcess,
    believed,
    find_ranks,
    is_launcher,
)
from lightning_hangcheck.recorder.page import PageWriter


def process(pid: int, parent: int, *, python: bool = True, **environment: str) -> SeenProcess:
    return SeenProcess(
        pid=pid,
        parent_pid=parent,
        started_ticks=pid,
        python=python,
        identity=identify(environment),
    )


def torchrun_rank(pid: int, parent: int, rank: int, *, python: bool = True) -> SeenProcess:
    return process(
        pid,
        parent,
        python=python,
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE="2",
        LOCAL_WORLD_SIZE="2",
        TORCHELASTIC_RUN_ID="none",
    )


def pids(processes: list[SeenProcess], beats: dict[int, Beat] | None = None) -> dict[int, int]:
    return {rank.rank: rank.pid for rank in find_ranks(processes, beats or {})}


def test_torchrun_ranks_are_its_children_and_the_agent_is_none() -> None:
    tree = [process(10, 1), torchrun_rank(11, 10, 0), torchrun_rank(12, 10, 1)]
    assert pids(tree) == {0: 11, 1: 12}


def test_torchrun_in_a_pod_whose_operator_counts_pods_as_ranks_is_none() -> None:
    """Kubeflow's PyTorchJob gives the pod RANK and WORLD_SIZE; torchrun gives its ranks others."""
    pod = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    ranks = [torchrun_rank(11, 10, 0), torchrun_rank(12, 10, 1)]
    assert pids([process(10, 1, **pod), *ranks]) == {0: 11, 1: 12}
    assert pids([process(10, 1, **pod), process(13, 10, **pod)]) == {1: 10}


@pytest.mark.parametrize(
    ("tree", "found"),
    [
        ([torchrun_rank(11, 10, 0), torchrun_rank(21, 11, 0), torchrun_rank(22, 11, 0)], {0: 11}),
        ([torchrun_rank(11, 10, 0, python=False), torchrun_rank(12, 11, 0)], {0: 12}),
        ([process(10, 1, python=False), process(11, 10), process(12, 11)], {0: 11}),
        ([process(11, 10, RANK="0", WORLD_SIZE="two", LOCAL_RANK="0")], {0: 11}),
    ],
    ids=["DataLoader workers", "a shell around a rank", "a lonely process", "a size of no number"],
)
def test_who_carries_the_environment_of_a_rank_may_be_none(
    tree: list[SeenProcess], found: dict[int, int]
) -> None:
    assert pids(tree) == found


def test_lightning_starts_rank_1_below_rank_0() -> None:
    tree = [process(10, 1), process(11, 10, LOCAL_RANK="1", NODE_RANK="0", WORLD_SIZE="2")]
    found = find_ranks(tree, {})
    assert [(rank.rank, rank.pid, rank.guessed) for rank in found] == [
        (0, 10, False),
        (1, 11, False),
    ]
    assert {rank.world_size for rank in found} == {2}


def test_ranks_that_lightning_started_are_all_only_where_they_meet_on_this_machine() -> None:
    """MASTER_ADDR names another one where the job has several nodes."""
    four = {"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "4"}
    for address, here in (("127.0.0.1", 4), ("node0", None)):
        tree = [process(10, 1), process(11, 10, MASTER_ADDR=address, **four)]
        assert find_ranks(tree, {})[1].local_world_size == here


def test_a_slurm_task_that_starts_ranks_itself_is_not_one_of_so_many_here() -> None:
    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NODEID": "1", "SLURM_STEP_ID": "0"}
    tree = [process(10, 1, SLURM_TASKS_PER_NODE="1(x2)", **task)]
    (own,) = find_ranks(tree, {})
    assert (own.rank, own.local_world_size) == (1, 1)
    (spawned,) = find_ranks(tree, {10: Beat(pid=10, rank=4, world_size=8)})
    assert (spawned.rank, spawned.local_world_size) == (4, None)


def test_a_rank_that_is_only_the_first_python_process_is_a_guess() -> None:
    (guess,) = find_ranks([process(10, 1)], {})
    assert guess.guessed
    found = find_ranks([process(10, 1), torchrun_rank(11, 10, 0)], {})
    assert not any(rank.guessed for rank in found)


def test_what_a_script_starts_beside_the_job_is_no_rank_before_it_loads_torch() -> None:
    """An exporter that waits for ever, beside a launcher that has not come yet."""
    shell, exporter = process(10, 1, python=False), replace(process(11, 10), trains=False)
    assert pids([shell, exporter]) == {}
    assert pids([shell, exporter, process(12, 10)]) == {0: 12}
    assert pids([shell, exporter], {11: Beat(pid=11)}) == {0: 11}


def test_a_page_that_knows_its_rank_decides() -> None:
    tree = [process(10, 1), process(11, 10), process(12, 10)]
    beats = {pid: Beat(pid=pid, rank=pid - 11, world_size=2) for pid in (11, 12)}
    assert pids(tree, beats) == {0: 11, 1: 12}
    twice = {pid: Beat(pid=pid, rank=0, world_size=2) for pid in (11, 12)}
    (found,) = find_ranks(tree, twice)
    assert {found.pid, *found.rivals} == {11, 12}, "two processes say that they are one rank"
    assert pids([torchrun_rank(11, 10, 0)], {99: Beat(pid=99, rank=1)}) == {0: 11}, "99 is gone"


def test_a_slurm_task_that_spawns_the_ranks_of_its_node_is_none() -> None:
    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
    tree = [process(10, 1, **task), process(11, 10, **task), process(12, 10, **task)]
    tree.append(process(21, 11, **task))  # a DataLoader worker
    spawned = {11: Beat(pid=11, rank=2, world_size=4), 12: Beat(pid=12, rank=3, world_size=4)}
    assert pids(tree, {10: Beat(pid=10, rank=1, world_size=2), **spawned}) == {2: 11, 3: 12}


def test_the_ranks_store_is_where_a_rank_joined_not_where_its_first_environment_said() -> None:
    spawned, launched = process(11, 10), process(12, 10, MASTER_PORT="1", RANK="1", WORLD_SIZE="2")
    told = {pid: Beat(pid=pid, rank=pid - 11, world_size=2, store_port=2) for pid in (11, 12)}
    assert [one.store_port for one in find_ranks([spawned, launched], told)] == [2, 2]
    assert [one.store_port for one in find_ranks([launched], {})] == [1]


def _child(pid: int, announced: int, rank: int | None = None, ending: str = "running") -> Beat:
    told = {"rank": rank, "world_size": 2} if rank is not None else {}
    return Beat(pid=pid, parent_pid=10, announced=announced, ending=ending, **told)


def _numbers(*beats: Beat) -> dict[int, int | None]:
    return {pid: beat.rank for pid, beat in believed({one.pid: one for one in beats}).items()}


@pytest.mark.parametrize("first", [0, 2])
def test_a_child_that_has_not_joined_is_the_rank_that_it_was_announced_as_once_a_sibling_has(
    first: int,
) -> None:
    """On the second node the numbers of the children follow those of the first."""
    beats = (_child(11, 0), _child(12, 1, rank=first + 1))
    assert _numbers(*beats) == {11: first, 12: first + 1}


@pytest.mark.parametrize(
    ("beats", "numbers"),
    [
        # actors, readers and other helpers are numbered, too
        ([_child(11, 0), _child(12, 1)], {11: None, 12: None}),
        (
            [Beat(pid=30, parent_pid=29, rank=0, world_size=2), _child(11, 0), _child(12, 1)],
            {30: 0, 11: None, 12: None},
        ),
        # a parent that failed had only waited for them
        (
            [Beat(pid=10, parent_pid=1, ending="raised"), _child(11, 0), _child(12, 1)],
            {10: None, 11: 0, 12: 1},
        ),
        # a number that a rank has taken is nobody else's
        (
            [_child(11, 0), _child(12, 1, rank=1), Beat(pid=30, rank=0)],
            {11: None, 12: 1, 30: 0},
        ),
    ],
)
def test_children_of_which_none_has_joined_may_be_no_ranks_at_all(
    beats: list[Beat], numbers: dict[int, int | None]
) -> None:
    assert _numbers(*beats) == numbers


def test_where_a_launcher_numbers_the_ranks_none_is_guessed() -> None:
    """Below a daemon of Ray are its agents, and workers of other jobs."""
    tree = [process(10, 1), process(11, 10), process(12, 10)]
    assert [rank.pid for rank in find_ranks(tree, {}, numbered=True)] == []
    told = {12: Beat(pid=12, rank=1, world_size=2)}
    assert [rank.pid for rank in find_ranks(tree, told, numbered=True)] == [12]


def test_what_a_slurm_task_started_beside_the_ranks_is_none_by_its_variables() -> None:
    """``srun ray start --block`` on each of two nodes: all of Ray carries the task's number."""
    task = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
    daemons = [process(pid, parent, **task) for pid, parent in ((10, 1), (11, 10), (12, 11))]
    told = {13: Beat(pid=13, rank=2, world_size=4), 14: Beat(pid=14, rank=3, world_size=4)}
    ranks = [process(pid, 11, **task) for pid in told]
    assert pids([*daemons, *ranks], told) == {2: 13, 3: 14}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", True),
        ("/venv/bin/python3.11 -u -X dev -m torch.distributed.run train.py", True),
        ("/venv/bin/python /venv/bin/torchrun --standalone train.py", True),
        ("torchrun train.py", True),
        ("python /venv/bin/accelerate launch train.py", True),
        ("python train.py torchrun", False),
        ("python -m train --launcher torchrun", False),
        ("python -W ignore train.py", False),
        ("python", False),
        ("", False),
    ],
)
def test_a_launcher_is_the_program_and_no_argument(line: str, expected: bool) -> None:
    assert is_launcher(line.split()) is expected


def test_what_each_python_process_runs_knows_the_same_launchers() -> None:
    file = Path(zero_code.__file__).parent / "inject" / "sitecustomize.py"
    told = next(
        ast.literal_eval(node.value)
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAUNCHERS"
    )
    assert frozenset(told) == LAUNCHERS


LAUNCHER = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1)
print(rank.pid, flush=True)
input()
"""


def test_a_process_that_was_killed_stays_what_it_was_until_its_parent_notices() -> None:
    """Else a rank would be taken for a stranger at its end."""
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as launcher:
        lines = [launcher.stdout.readline().strip() for _ in range(2)]
        pid = int("".join(lines))
        tree = ProcessTree(launcher.pid, root_belongs=False)
        (before,) = tree.take(0)
        os.kill(pid, signal.SIGKILL)
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "its end")
        (after,) = tree.take(1)
        launcher.stdin.close()
    assert before.python
    assert before.pid == pid
    assert after == before


def test_a_process_with_the_number_of_an_earlier_one_is_read_by_its_own_page(
    tmp_path: Path,
) -> None:
    page, pages = tmp_path / "4711.page", Pages(tmp_path)
    for number in (0, 1):
        PageWriter.create(page).show(announced=number)
        pages.find_new()
        beats = pages.read()
        assert beats[4711].announced == number
    pages.close()
