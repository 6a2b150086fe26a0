"""Ranks that no launcher numbered: processes that a script spawns, seen where they join."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from long_tests import WHEN_ASKED_FOR
from watch.launched import record_of, run, verdict_of

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


KILLED_BEFORE_IT_JOINED = """
import multiprocessing, os, signal, sys, torch, torch.distributed as dist

def work(rank, file):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)

if __name__ == "__main__":
    how, file = sys.argv[1:]
    if how == "torch":
        torch.multiprocessing.spawn(work, (file,), nprocs=2)
    else:
        start = multiprocessing.get_context(how)
        children = [start.Process(target=work, args=(rank, file)) for rank in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
"""


@pytest.mark.real
@WHEN_ASKED_FOR
@pytest.mark.parametrize("how", ["torch", "fork"])
def test_a_child_that_was_killed_before_it_joined_is_known_by_the_number_it_was_given(
    how: str, tmp_path: Path
) -> None:
    """torch ends the others for it, nobody else does; the parent only waits.

    A forked child is gone within milliseconds, too soon for anybody to watch its end.
    """
    (tmp_path / "train.py").write_text(KILLED_BEFORE_IT_JOINED)
    command = [sys.executable, "train.py", how, str(tmp_path / "meet")]
    run(tmp_path, command, "--on-hang", "abort")
    verdict = verdict_of(tmp_path / "run")
    assert (verdict.culprits, verdict.cause) == ((0,), "process_dead")
    assert verdict.verdict == ("crashed" if how == "torch" else "dead")
    unseen = how == "fork" and "its exit code is unknown" in verdict.summary
    assert unseen or "was killed by SIGKILL" in verdict.summary
