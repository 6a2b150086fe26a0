"""Threads: as many as there is room for, and too many."""

from __future__ import annotations

import pytest
from subjects import subject

from lightning_hangcheck.doctor.surroundings import computing_threads, tokenizers_threads


@pytest.mark.parametrize(
    ("value", "status"), [("true", "warning"), ("1", "warning"), ("false", "ok"), ("", "ok")]
)
def test_threads_of_tokenizers_do_not_live_through_a_fork(value: str, status: str) -> None:
    (check,) = tokenizers_threads(subject(TOKENIZERS_PARALLELISM=value))
    assert check.status == status


@pytest.mark.parametrize(
    ("command", "threads", "status"),
    [
        ("torchrun --nproc_per_node=4 a.py", "16", "warning"),
        ("torchrun --nproc_per_node=4 a.py", "", "ok"),
        ("torchrun --nproc_per_node=4 a.py", "2", "ok"),
        ("mpirun -np 4 python a.py", "", "warning"),
        ("python a.py", "16", "ok"),
    ],
)
def test_threads_of_all_ranks_count(command: str, threads: str, status: str) -> None:
    (check,) = computing_threads(subject(command, OMP_NUM_THREADS=threads), processors=8)
    assert check.status == status
    assert check.remedy == ("export OMP_NUM_THREADS=2" if status == "warning" else "")
