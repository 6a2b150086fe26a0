"""torchrun starts the ranks again: one run, a chapter for each round, no failure forgotten."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from long_tests import WHEN_ASKED_FOR
from processes import PROGRAMS
from watch.launched import record_of, run, verdict_of

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.rundir import read_journal

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.real
QUICKLY = ("--on-hang", "abort", "--set", "idle_after=5", "--set", "proven_after=5")


def torchrun(*words: str) -> list[str]:
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node=2", "--max-restarts=1", str(PROGRAMS / "rounds.py"), *words),
    ]


def verdicts(folder: Path) -> list[Verdict]:
    paths = sorted((folder / "verdicts").iterdir(), key=lambda path: int(path.stem))
    return [msgspec.json.decode(path.read_bytes(), type=Verdict) for path in paths]


def test_a_failure_that_a_restart_mended_is_told_when_it_happens_and_at_the_end(
    tmp_path: Path,
) -> None:
    ended = run(tmp_path, torchrun("raise", "train"))
    assert ended.returncode == 0
    first, last = verdicts(tmp_path / "run")
    assert (first.verdict, first.culprits, first.victims) == ("crashed", (1,), (0,))
    assert first.summary.startswith("round 0 ended: rank 1 failed first: it")
    assert first.summary.endswith("; torchrun restarts (1 of 1)")
    assert ended.stderr.count("CRASHED  round 0 ended") == 1
    assert (last.verdict, last.culprits, last.world_size) == ("finished", (), 2)
    assert "exited cleanly in round 1; round 0 had ended: rank 1 failed first" in last.summary
    assert "it exited with code 1: ValueError: bad sample" in last.summary
    assert [item.kind for item in last.evidence] == ["round"]

    rounds = record_of(tmp_path / "run").rounds
    assert [(one.number, one.verdict, one.culprits) for one in rounds] == [
        (0, "crashed", (1,)),
        (1, "finished", ()),
    ]
    entries, _ = read_journal(tmp_path / "run" / "ranks" / "rank-1.jsonl")
    assert [entry["round"] for entry in entries if entry["kind"] == "start"] == [0, 1]
    for number, verdict in ((1, first), (2, last)):
        case = (tmp_path / "run" / "evidence" / str(number) / "case.json").read_bytes()
        assert judge(msgspec.json.decode(case, type=Case)) == verdict


@WHEN_ASKED_FOR
def test_the_next_command_of_a_shell_script_is_no_round_of_the_one_before(tmp_path: Path) -> None:
    wait = (
        "import os, pathlib, sys, time\n"
        "while f'\"pid\": {os.getpid()},' not in pathlib.Path('run/run.json').read_text():\n"
        "    time.sleep(0.05)\n"
    )
    (tmp_path / "check.py").write_text(f"{wait}sys.exit(1)\n")
    (tmp_path / "train.py").write_text(wait)
    script = f"'{sys.executable}' check.py; '{sys.executable}' train.py"
    ended = run(tmp_path, ["/bin/sh", "-c", script])
    assert ended.returncode == 0
    assert "CRASHED" not in ended.stderr
    assert [one.verdict for one in record_of(tmp_path / "run").rounds] == ["finished"]


@WHEN_ASKED_FOR
def test_a_shell_that_starts_a_failed_script_again_is_one_run_with_its_rounds(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, pathlib, sys, time\n"
        "tries = pathlib.Path('tries')\n"
        "count = len(tries.read_text()) if tries.exists() else 0\n"
        "tries.write_text('x' * (count + 1))\n"
        "while f'\"pid\": {os.getpid()},' not in pathlib.Path('run/run.json').read_text():\n"
        "    time.sleep(0.05)\n"
        "sys.exit(3 if count < 2 else 0)\n"
    )
    loop = ["/bin/sh", "-c", f"until '{sys.executable}' train.py; do :; done"]
    assert run(tmp_path, loop).returncode == 0
    rounds = record_of(tmp_path / "run").rounds
    assert [one.verdict for one in rounds] == ["crashed", "crashed", "finished"]
    summary = verdict_of(tmp_path / "run").summary
    assert "rounds 0-1 had ended: rank 0 failed first: it exited with code 3" in summary


@WHEN_ASKED_FOR
def test_on_hang_restart_has_torchrun_start_the_ranks_again_while_it_does(tmp_path: Path) -> None:
    """The second hang finds no restart left, and ends the job."""
    words = (torchrun("hang", "hang"), "--on-hang", "restart", *QUICKLY[2:])
    ended = run(tmp_path, *words, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    assert ended.returncode == 75
    assert ended.stderr.count("torchrun starts them again (restarts left before this one: 1)") == 1
    assert "not started again: torchrun has no restart left" in ended.stderr
    last = verdict_of(tmp_path / "run")
    assert (last.verdict, last.culprits, last.victims) == ("hang", (1,), (0,))
    assert "the job was ended by hangcheck run (--on-hang restart)" in last.summary
    rounds = record_of(tmp_path / "run").rounds
    assert [(one.verdict, one.culprits) for one in rounds] == [("hang", (1,))] * 2
    told = [one.verdict for one in verdicts(tmp_path / "run")]
    assert "recovered" not in told
    assert "dead" not in told
