"""Real jobs under `hangcheck run`: launchers, what stays as it was, and what is told outside."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from launch.terminals.terminal import Terminal
from processes import PATIENCE_S, PROGRAMS, ending, is_alive, runs, until
from prometheus_client.parser import text_string_to_metric_families
from stalling_storage import StallingStorage, stalling_storage
from watch.launched import LONGEST_RUN_S, python, record_of, run, run_words, start_run, verdict_of

from lightning_hangcheck.report.journals import read_journal
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real
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


# Nothing that a program computes changes by being watched: not one bit of a loss or a weight.

WAYS = {
    "plain": "torch",
    "adversaries": "torch",
    "compiled": "torch",
    "workers": "torch",
    "lightning": "pytorch_lightning",
    "fabric": "lightning",
    "accelerated": "accelerate",
    "huggingface": "accelerate",
    "generate": "transformers",
}


def test_losses_and_outputs_are_bit_for_bit_the_same(tmp_path: Path) -> None:
    ways = [way for way, needed in WAYS.items() if find_spec(needed) is not None]
    alone = [sys.executable, str(PROGRAMS / "repeatable.py"), *ways]
    hangcheck = str(Path(sys.executable).with_name("hangcheck"))
    watched = [hangcheck, "run", "--run-dir", str(tmp_path / "run"), "--", *alone]
    off, on = printed(alone, tmp_path), printed(watched, tmp_path)
    assert [line[3:] for line in off if line.startswith("== ")] == ways
    assert on == off
    assert (tmp_path / "run" / "ranks").is_dir()


def printed(command: list[str], folder: Path) -> list[str]:
    """What a program prints on its standard output, in lines."""
    quiet = {"CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        check=False,
        timeout=LONGEST_RUN_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


# What a watched job that is slow, or stalls on storage, is told outside.

TORCHRUN = ("torchrun", "--nproc_per_node=2")


def test_a_rank_whose_loader_is_slow_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path, [*TORCHRUN, str(PROGRAMS / "straggling.py"), "csv"])
    assert ended.returncode == 0, ended.stderr
    finished, steps, where, _trend = ended.stderr.splitlines()[-4:]
    assert finished.startswith("FINISHED")
    assert "slowest is rank 1: " in steps
    assert "rank 1: loader " in where
    kept = read_saved_run(RunFolder(tmp_path / "run")).case
    assert stragglers_lines(find_stragglers(kept))[0] == steps
    (logged,) = tmp_path.glob("logged/**/metrics.csv")
    with logged.open() as file:
        rows = [row for row in csv.DictReader(file) if row["hangcheck/step_time"]]
    assert len(rows) >= 3, "every fourth of 32 steps, but for the first"
    assert {row["hangcheck/slowest_rank"] for row in rows} == {"1"}
    assert {row["hangcheck/state"] for row in rows} == {"0"}
    assert all(float(row["hangcheck/straggler_ratio"]) > 1.0 for row in rows)
    assert all(float(row["hangcheck/step_time"]) >= 0.3 for row in rows)


HANGING = [sys.executable, str(PROGRAMS / "standing_still.py")]
"""Two ranks, each in ``take_task``."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StallingStorage]:
    with stalling_storage(tmp_path) as mounted:
        yield mounted


def test_a_hang_is_told_and_ended_while_storage_is_silent(
    tmp_path: Path, storage: StallingStorage
) -> None:
    """Its evidence cannot be saved first; that is no reason to let the job hang."""
    run_dir = storage.folder / "run"
    process = start_run(
        *(tmp_path, HANGING, "--run-dir", str(run_dir), "--on-hang", "abort"),
        HANGCHECK_IDLE_AFTER="6",
        HANGCHECK_STALL_TIMEOUT="8",
        HANGCHECK_ABORT_GRACE="2",
    )
    with ending(process):
        until(lambda: len(list(run_dir.glob("ranks/rank-*"))) == 2, "both journals")
        storage.stall()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 75, errors
    assert "take_task" in errors
    # a busy machine may find storage silent before it is stalled
    assert errors.count("does not answer") + errors.count("is kept in") == 1, errors
    storage.answer_again()


LEAK = "xleakx"
DEAF = """import os, pathlib
assert not {'HANGCHECK_NOTIFY', 'HANGCHECK_ON_HANG_EXEC'} & set(os.environ)
pathlib.Path('pid').write_text(str(os.getpid()))"""
STUCK = "import threading\none = threading.Lock()\none.acquire()\none.acquire()"
HASTE = ("--set", "idle_after=4", "--stall-timeout", "4")
ON_HANG = """env > told.txt
echo once >> times.txt
until grep -q 'state.* 2$' job.prom; do sleep 0.1; done
cp job.prom seen.prom
kill -KILL "$(cat pid)"
"""


def metrics_of(file: Path) -> dict[str, float]:
    """Of a run of one rank, by name."""
    families = text_string_to_metric_families(file.read_text())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_hang_is_told_once_to_everybody(tmp_path: Path) -> None:
    """The job itself hears nothing of whom its hangs are told to."""
    pytest.importorskip("apprise", reason="the extra `notify` is not installed")
    with receiving() as server:
        ended = run(
            tmp_path,
            python(f"{DEAF}\n{STUCK}"),
            *HASTE,
            *("--on-hang-exec", ON_HANG, "--prometheus", "job.prom"),
            HANGCHECK_NOTIFY=f"json://{server.address}/{LEAK}",
        )
    assert ended.returncode == 137, ended.stderr
    (message,), folder = server.got, str(tmp_path / "run")
    assert f"report: {folder}/report.html" in message["message"]
    given = dict(
        line.split("=", 1)
        for line in (tmp_path / "told.txt").read_text().splitlines()
        if line.startswith("HANGCHECK_")
    )
    assert (given["HANGCHECK_KIND"], given["HANGCHECK_RUN_DIR"]) == ("hang", folder)
    assert message["title"].startswith("HANG ")
    assert "HANGCHECK_NOTIFY" not in given
    assert (tmp_path / "times.txt").read_text() == "once\n"
    seen, after = (metrics_of(tmp_path / name) for name in ("seen.prom", "job.prom"))
    assert (seen["hangcheck_state"], seen["hangcheck_watching"]) == (2, 1)
    last = {"hang": 2, "dead": 3}[verdict_of(tmp_path / "run").verdict]
    assert (after["hangcheck_state"], after["hangcheck_watching"]) == (last, 0)
    assert after["hangcheck_stall_seconds"] > seen["hangcheck_stall_seconds"] > 3
    assert 0 < time.time() - after["hangcheck_last_progress_timestamp_seconds"] < LONGEST_RUN_S
    assert after["hangcheck_exit_code"] == -9
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert LEAK.encode() not in b"".join([*left, ended.stderr.encode()])


# Closing the terminal ends the job, also where `hangcheck run` leads the terminal's session.

# the file says that its line is written whole: a terminal that closes meanwhile ends it by EIO
IN_A_GROUP_OF_ITS_OWN = (
    "import os, time; os.setpgid(0, 0); print('ready', os.getpid(), flush=True); "
    "open('written', 'x').close(); time.sleep(1000)"
)


def test_closing_the_terminal_of_the_session_that_we_lead(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, run_words([sys.executable, "-c", IN_A_GROUP_OF_ITS_OWN]))
    try:
        terminal.until_shown("ready ")
        until(lambda: (tmp_path / "written").exists(), "its line to be written")
        until(lambda: (tmp_path / "run" / "run.json").exists(), "the run folder")
        below = terminal.below()
        (command,) = [one for one in below if runs(one, IN_A_GROUP_OF_ITS_OWN)]
        terminal.close()
        until(lambda: not is_alive(command), "the command to end")
        assert terminal.until_ended() == 128 + 1
    finally:
        terminal.end()
    assert "SIGHUP (its terminal was closed)" in verdict_of(tmp_path / "run").summary
