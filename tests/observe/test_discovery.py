"""Which processes are ranks and which are launchers, under each launcher."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from lightning_hangcheck.identity import identify, is_launcher
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.observe.discovery import SeenProcess, believed, find_ranks


def process(pid: int, parent: int, *, python: bool = True, **environment: str) -> SeenProcess:
    return SeenProcess(
        pid=pid, parent_pid=parent, started_ticks=pid, python=python, identity=identify(environment)
    )


def torchrun_rank(pid: int, parent: int, rank: int, *, python: bool = True) -> SeenProcess:
    sizes = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
    return process(pid, parent, python=python, RANK=str(rank), LOCAL_RANK=str(rank), **sizes)


def told(pid: int, rank: int | None = None, world_size: int = 2, **facts: Any) -> Beat:
    """What a page tells of a rank; of one that has not joined, nothing."""
    joined = {} if rank is None else {"rank": rank, "world_size": world_size}
    return Beat(pid=pid, **joined, **facts)


def pids(processes: list[SeenProcess], *beats: Beat) -> dict[int, int]:
    found = find_ranks(processes, {one.pid: one for one in beats})
    return {rank.rank: rank.pid for rank in found}


POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
TASK = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}
SHELL, EXPORTER = process(10, 1, python=False), replace(process(11, 10), trains=False)


@pytest.mark.parametrize(
    ("tree", "beats", "found"),
    [
        ([process(10, 1), torchrun_rank(11, 10, 0), torchrun_rank(12, 10, 1)], [], {0: 11, 1: 12}),
        # Kubeflow's PyTorchJob gives the pod RANK and WORLD_SIZE; torchrun gives its ranks others
        (
            [process(10, 1, **POD), torchrun_rank(11, 10, 0), torchrun_rank(12, 10, 1)],
            [],
            {0: 11, 1: 12},
        ),
        # DataLoader workers, a shell around a rank, a lonely process, a size that is no number
        ([torchrun_rank(11, 10, 0), torchrun_rank(21, 11, 0)], [], {0: 11}),
        ([torchrun_rank(11, 10, 0, python=False), torchrun_rank(12, 11, 0)], [], {0: 12}),
        ([SHELL, process(11, 10), process(12, 11)], [], {0: 11}),
        ([process(11, 10, RANK="0", WORLD_SIZE="two", LOCAL_RANK="0")], [], {0: 11}),
        # what a script starts beside the job is no rank before it loads torch: an exporter that
        # waits for ever, beside a launcher that has not come yet
        ([SHELL, EXPORTER], [], {}),
        ([SHELL, EXPORTER, process(12, 10)], [], {0: 12}),
        ([SHELL, EXPORTER], [told(11)], {0: 11}),
        # a page that knows its rank decides, unless its process is gone
        (
            [process(10, 1), process(11, 10), process(12, 10)],
            [told(11, 0), told(12, 1)],
            {0: 11, 1: 12},
        ),
        ([torchrun_rank(11, 10, 0)], [told(99, 1)], {0: 11}),
        # a SLURM task that spawns the ranks of its node is none, nor is a DataLoader worker
        (
            [process(pid, up, **TASK) for pid, up in ((10, 1), (11, 10), (12, 10), (21, 11))],
            [told(10, 1), told(11, 2, 4), told(12, 3, 4)],
            {2: 11, 3: 12},
        ),
    ],
)
def test_who_of_a_tree_is_which_rank(
    tree: list[SeenProcess], beats: list[Beat], found: dict[int, int]
) -> None:
    assert pids(tree, *beats) == found


def test_a_rank_may_still_come_as_long_as_its_shell_is_at_something_else() -> None:
    agent, first = process(10, 1), torchrun_rank(11, 10, 0)
    shell, copies = (torchrun_rank(pid, pid - 1, 1, python=False) for pid in (12, 13))
    alone, before = find_ranks([agent, first], {}), find_ranks([agent, first, shell, copies], {})
    assert [(rank.rank, rank.one_by_one) for rank in (*alone, *before)] == [(0, False), (0, True)]


def test_two_processes_may_say_that_they_are_one_rank() -> None:
    twice = {pid: told(pid, 0) for pid in (11, 12)}
    (found,) = find_ranks([process(11, 10), process(12, 10)], twice)
    assert {found.pid, *found.rivals} == {11, 12}


@pytest.mark.parametrize(
    ("others", "watched"),
    [
        ((21, 22), [(0, 11, (21,)), (1, 12, (22,))]),  # the first
        ((21, 22, 23), [(0, 21, (11,)), (1, 22, (12,)), (2, 23, ())]),  # the largest
    ],
)
def test_of_two_launches_beside_each_other_one_is_watched(
    others: tuple[int, ...], watched: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    """Pages come in any order: ranks of two jobs must not make one."""
    tree = [process(pid, 10) for pid in (11, 12, *others)]
    beats = [told(pid, pid - 21, store_port=7) for pid in reversed(others)]
    beats[1:1] = [told(11, 0, store_port=5), told(12, 1, store_port=5)]
    found = find_ranks(tree, {beat.pid: beat for beat in beats})
    assert [(rank.rank, rank.pid, rank.rivals) for rank in found] == watched


def test_lightning_starts_rank_1_below_rank_0() -> None:
    tree = [process(10, 1), process(11, 10, LOCAL_RANK="1", NODE_RANK="0", WORLD_SIZE="2")]
    found = find_ranks(tree, {})
    assert [(rank.rank, rank.pid, rank.guessed) for rank in found] == [
        (0, 10, False),
        (1, 11, False),
    ]
    assert {rank.world_size for rank in found} == {2}


def test_a_rank_that_is_only_the_first_python_process_is_a_guess() -> None:
    (guess,) = find_ranks([process(10, 1)], {})
    assert guess.guessed
    found = find_ranks([process(10, 1), torchrun_rank(11, 10, 0)], {})
    assert not any(rank.guessed for rank in found)


def _child(pid: int, announced: int, rank: int | None = None) -> Beat:
    return told(pid, rank, parent_pid=10, announced=announced)


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
        # a parent that failed had only waited for them
        (
            [Beat(pid=10, parent_pid=1, ending="raised"), _child(11, 0), _child(12, 1)],
            {10: None, 11: 0, 12: 1},
        ),
        # a number that a rank has taken is nobody else's
        ([_child(11, 0), _child(12, 1, rank=1), Beat(pid=30, rank=0)], {11: None, 12: 1, 30: 0}),
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
    joined = {12: told(12, 1)}
    assert [rank.pid for rank in find_ranks(tree, joined, numbered=True)] == [12]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/venv/bin/python3.11 -u -X dev -m torch.distributed.run train.py", True),
        ("/venv/bin/python /venv/bin/torchrun --standalone train.py", True),
        ("python /venv/bin/accelerate launch train.py", True),
        ("python train.py torchrun", False),
        ("python -m train --launcher torchrun", False),
        ("", False),
    ],
)
def test_a_launcher_is_the_program_and_no_argument(line: str, expected: bool) -> None:
    assert is_launcher(line.split()) is expected
