"""Ranks that other launchers start: `spawn`, and scripts that know of nobody."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from processes import PROGRAMS
from watch.launched import record_of, run

from lightning_hangcheck.report.journals import read_journal

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


OFFLINE = {
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "HANGCHECK_CONSOLE": "all",
}

CHECKPOINTS = [
    "1: Script started",
    "4: Tokenizer loaded",
    "5: Model created",
    "9: WandbLogger ready (prime suspect)",
    "8: Accelerator configured",
    "11: Trainer ready (prime suspect)",
    "7: DataModule ready",
    "12: Training finished",
]
"""In the order of this script, whose numbers are those of the reference script."""

SECTIONS = [
    "tokenizer from_pretrained (AutoTokenizer)",
    "model from_pretrained (AutoModelForCausalLM)",
    "WandbLogger constructor",
    "Trainer constructor",
    "Trainer.fit",
    "wandb.init",
    "DataLoader constructor",
    "first batch of a DataLoader",
    "Trainer.save_checkpoint",
]


def script(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "ignore", str(PROGRAMS / "unaware_training.py"), *arguments]


def said_of(errors: str, rank: int) -> list[str]:
    """What our lines say of the process that became this rank."""
    pid = re.search(rf"\[R{rank}/\d+\]\[LR{rank}\]\[PID:(\d+)\]", errors)
    assert pid is not None, errors
    return re.findall(rf"\[PID:{pid[1]}\] (.+)", errors)


@pytest.mark.real
def test_a_training_is_seen_from_its_start_to_its_end_and_is_not_changed(tmp_path: Path) -> None:
    ended = run(tmp_path, script("lightning.pytorch"), **OFFLINE)
    assert (ended.returncode, ended.stdout) == (3, "steps 8 vocabulary 1\n")
    said = said_of(ended.stderr, 0)
    prefix = "CHECKPOINT "
    assert [one.removeprefix(prefix) for one in said if prefix in one] == CHECKPOINTS
    assert re.search(r"\[R0/1\]\[LR0\]\[PID:\d+\] CHECKPOINT 11: Trainer ready", ended.stderr)
    begun = re.findall(r"About to call (.+)\.\.\.", "\n".join(said))
    assert list(dict.fromkeys(begun)) == SECTIONS
    for section in begun:
        assert sum(one.startswith(f"{section} returned (") for one in said) == begun.count(section)
