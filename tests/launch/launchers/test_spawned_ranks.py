"""Ranks that no launcher numbered: processes that a script spawns, seen where they join."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from watch.launched import record_of, run

from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from pathlib import Path

SPAWNING = """
import os, sys, tempfile, torch, torch.distributed as dist
from torch.utils.data import DataLoader

def train(rank, file):
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
    for batch in DataLoader(range(4), num_workers=1):
        dist.all_reduce(batch)
    print("rank", rank, file=sys.stderr)
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (tempfile.mkdtemp() + "/meet",), nprocs=2)
    print("all done")
"""


@pytest.mark.real
def test_spawned_processes_become_ranks_where_they_join_and_their_workers_do_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SPAWNING)
    ended = run(tmp_path, [sys.executable, "train.py"])
    assert (ended.returncode, ended.stdout) == (0, "all done\n")
    record = record_of(tmp_path / "run")
    assert record.world_size == 2
    journals = sorted(path.name for path in (tmp_path / "run" / "ranks").iterdir())
    assert journals[-2:] == ["rank-0.jsonl", "rank-1.jsonl"]
    for rank in (0, 1):
        entries, _ = read_journal(tmp_path / "run" / "ranks" / f"rank-{rank}.jsonl")
        kinds = [entry["kind"] for entry in entries]
        assert (entries[0]["rank"], entries[0]["world_size"]) == (rank, 2)
        assert (kinds.count("start"), kinds[-1]) == (1, "finished")
        assert f"[R{rank}/2]" in ended.stderr
    assert ended.stderr.count("About to call init_process_group...") == 2
