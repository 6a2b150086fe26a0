"""What a run's folder tells: its verdict from its evidence, where its ranks are, its rounds."""

from __future__ import annotations

import subprocess
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, job, rank
from hangbench.recorded import SHOWN, case_of_program

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection, SaveMark
from lightning_hangcheck.model.codec import encode_packed, encode_pretty
from lightning_hangcheck.model.evidence import Frame, Holder, WaitTarget
from lightning_hangcheck.model.run import RankPlace, Round, RunRecord
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report.saved_run import (
    MOST_LINES,
    JournalEnd,
    RunningRank,
    SavedRun,
    joined_rounds,
    moved_ranks,
    read_saved_run,
    render,
    render_unjudged,
)
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'torch', 'lightning', 'pytorch_lightning', 'transformers',
                                      'wandb', 'numpy'}:
            raise ImportError(f'{name} is not installed here')
sys.meta_path.insert(0, Blocker())
from lightning_hangcheck.cli.main import invoke
sys.exit(invoke(['report', *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose verdicts are lost and whose evidence is there."""
    case = case_of_program("logger_stalls")
    made = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), made)
    return made


@pytest.mark.parametrize("program", SHOWN)
def test_a_lost_verdict_comes_back_from_its_evidence(program: str, tmp_path: Path) -> None:
    """Byte for byte, after the way through the file."""
    recorded = case_of_program(program)
    folder = RunFolder(tmp_path / "run")
    save_run(recorded, judge(recorded), (), folder)
    lost = folder.verdict_file.read_bytes()
    folder.verdict_file.unlink()
    folder.numbered_verdict(1).unlink()
    saved = read_saved_run(folder)
    assert encode_pretty(saved.verdict) == lost
    assert saved.case is not None


def test_evidence_is_judged_where_torch_is_not_installed(folder: RunFolder) -> None:
    lost = folder.verdict_file.read_text()
    folder.verdict_file.unlink()
    reported = subprocess.run(
        [sys.executable, "-c", BLOCKED, "--json", str(folder.path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (reported.returncode, reported.stderr) == (0, "")
    assert reported.stdout == lost


def test_names_that_are_not_utf8_are_saved_by_their_escapes(tmp_path: Path) -> None:
    """A lock's file, a process, and the line's own file."""
    here = Frame("take_lock", "/data/\udcff/train.py", 7)
    lock = WaitTarget(
        call="flock",
        kind="lock",
        name="/data/\udcff.lock",
        holders=(Holder(pid=7, program="\udcfe"),),
    )
    case = job(rank(0, (here,), waits_for=(lock,)), rank(1, IN_ALL_REDUCE))
    folder = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), folder)
    saved = read_saved_run(folder)
    assert saved.case is not None
    assert saved.verdict is not None
    assert saved.verdict.cause == "file_lock"
    assert r"/data/\udcff.lock" in saved.verdict.summary
    encode_packed(case)  # as nodes tell each other, and as ranks that stand alike are found


def test_evidence_that_was_not_finished_is_a_gap(folder: RunFolder) -> None:
    folder.verdict_file.unlink()
    (folder.evidence(1) / "case.json").unlink()
    saved = read_saved_run(folder)
    assert saved.verdict is None
    assert [gap.why for gap in saved.gaps] == ["it was not finished"]


NOW = datetime(2026, 11, 20, 10, 30, tzinfo=timezone.utc)
MARK = CheckpointMark(number=11, name="Trainer ready", at="2026-11-20T10:20:00.000Z")
SAVE = SaveMark(number=2, at="2026-11-20T10:28:30.000Z", step=20)
LOADED = SaveMark(number=0, at="2026-11-20T10:29:00.000Z", step=8)
SECTIONS = (
    OpenSection("agent", 0, item=3),
    OpenSection("tool", 0),
    OpenSection("upload", 0, in_main_thread=False),
)


def running(
    rank: int, silent_s: float = 0.2, step_s: float | None = None, **beat: Any
) -> RunningRank:
    return RunningRank(rank=rank, beat=Beat(pid=1, **beat), silent_s=silent_s, step_s=step_s)


@pytest.mark.parametrize(
    ("known", "line"),
    [
        (
            {"phase": "training_step", "epoch": 2, "step": 40, "batch": 40, "save": SAVE},
            "training_step, epoch 2, step 40  0.41 s a step  last sign 0.2 s ago  "
            "saved at step 20, 1 min 30 s ago",
        ),
        (
            {"phase": "trainer_init", "checkpoint": MARK},
            "trainer_init  0.41 s a beat  last sign 0.2 s ago  "
            "CHECKPOINT 11: Trainer ready, 10 min 00 s ago",
        ),
        (
            {"sections": SECTIONS},
            "phase unknown, in tool  0.41 s a beat  last sign 0.2 s ago  no checkpoint yet",
        ),
        (
            {"phase": "validation", "batch": 7},
            "validation, batch 7  0.41 s a beat  last sign 0.2 s ago  no checkpoint yet",
        ),
        (
            {"phase": "backward", "step": 4},
            "backward, step 4  0.41 s a step  last sign 0.2 s ago  no save yet",
        ),
        (
            {"step": 9, "save": LOADED},
            "phase unknown, step 9  0.41 s a step  last sign 0.2 s ago  "
            "goes on from step 8, 1 min 00 s ago",
        ),
    ],
)
def test_a_rank_is_told_with_place_pace_and_save(known: dict[str, Any], line: str) -> None:
    """In the innermost section of its main thread; what was loaded is no save."""
    assert render([running(0, step_s=0.41, **known)], NOW, 8) == [f"      rank 0  {line}"]


def test_of_many_ranks_those_that_were_silent_longest_are_shown() -> None:
    ranks = [running(rank, silent_s=100.0 if rank in (3, 900) else 1.0) for rank in range(1000)]
    lines = render(ranks, NOW, 3)
    assert [line.split()[1] for line in lines[:2]] == ["3", "900"]
    assert lines[2].strip() == "... and 998 more, silent for less long"


def test_where_another_rank_saves_a_rank_without_a_save_lacks_nothing() -> None:
    save = SaveMark(number=1, at="2026-11-20T10:29:00.000Z", step=8)
    lines = render([running(0, step=9, save=save), running(1, step=9)], NOW, 8)
    assert lines[1].endswith("last sign 0.2 s ago")


def test_ranks_that_run_elsewhere_are_told_by_their_journals() -> None:
    mark = JournalEnd(name="rank-1", last_at="2026-11-20T10:29:00.000Z")
    saved = SavedRun(journals=(JournalEnd(name="rank-0"), mark))
    text = render_unjudged(saved, "runs/one", [running(0, phase="backward")], NOW)
    assert text.startswith("no verdict yet; 1 rank of it running here\n")
    assert text.count("rank 0") == 1
    assert "rank 1  no checkpoint yet  last line 2026-11-20T10:29:00.000Z" in text


def seen(number: int, host: str, *ranks: int, **facts: object) -> Round:
    places = tuple(RankPlace(rank=rank, host=host, pid=10 + rank) for rank in ranks)
    return Round(number=number, ranks=places, **facts)  # type: ignore[arg-type]


def record(*rounds: Round) -> RunRecord:
    return RunRecord(run_id="run", command="", started_at="", rounds=rounds)


FIRST = record(seen(0, "a", 0, 1, summary="rank 1 lost a peer"))
SECOND = record(
    seen(0, "b", 2, 3, culprits=(3,), summary="rank 3 failed first"),
    seen(1, "b", 0, 1),
    seen(2, "b", 2, 3),
)
THIRD = record(seen(2, "c", 0, 1))


def test_rounds_of_all_nodes_are_the_chapters_of_one_run() -> None:
    rounds = joined_rounds([FIRST, SECOND, THIRD])
    assert [(one.number, len(one.ranks)) for one in rounds] == [(0, 4), (1, 2), (2, 4)]
    assert rounds[0].summary == "rank 3 failed first", "the node that knows a culprit tells the end"
    assert rounds == joined_rounds([THIRD, SECOND, FIRST])


def test_lines_are_few_however_many_ranks_moved_and_hosts_are_shown_as_text() -> None:
    """A round in which a rank was not there is no move; those that moved alike share a line."""
    there = record(seen(0, "a", 0, 1), seen(1, "a", 0), seen(2, "a", 0, 1))
    assert moved_ranks(joined_rounds([there])) == []
    alike = moved_ranks(joined_rounds([FIRST, SECOND, THIRD]))
    assert alike == ["ranks 0-1 ran on a (round 0), b (round 1), c (round 2)"]
    before = [seen(0, f"h{rank}", rank) for rank in range(50)]
    after = [seen(1, f"n{rank}\x1b[31m", rank) for rank in range(50)]
    lines = moved_ranks(joined_rounds([record(one) for one in (*before, *after)]))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "and 44 more moved: see run.json"
    assert "\x1b" not in "".join(lines)
