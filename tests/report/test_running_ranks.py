"""Where running ranks are, in one line each."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection, SaveMark
from lightning_hangcheck.report.saved_run import (
    JournalEnd,
    RunningRank,
    SavedRun,
    render,
    render_below,
    render_unjudged,
)

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


def test_where_another_rank_saves_a_rank_without_a_save_lacks_nothing() -> None:
    save = SaveMark(number=1, at="2026-11-20T10:29:00.000Z", step=8)
    lines = render([running(0, step=9, save=save), running(1, step=9)], NOW, 8)
    assert lines[1].endswith("last sign 0.2 s ago")


def test_of_many_ranks_those_that_were_silent_longest_are_shown() -> None:
    ranks = [running(rank, silent_s=100.0 if rank in (3, 900) else 1.0) for rank in range(1000)]
    lines = render(ranks, NOW, 3)
    assert [line.split()[1] for line in lines[:2]] == ["3", "900"]
    assert lines[2].strip() == "... and 998 more, silent for less long"


def test_below_a_verdict_stands_nothing_where_no_rank_runs() -> None:
    assert render_below([], NOW) == ""
    assert render_below([running(1)], NOW).startswith("\nnow\n\n      rank 1  ")


def test_ranks_that_run_elsewhere_are_told_by_their_journals() -> None:
    mark = JournalEnd(name="rank-1", last_at="2026-11-20T10:29:00.000Z")
    saved = SavedRun(journals=(JournalEnd(name="rank-0"), mark))
    text = render_unjudged(saved, "runs/one", [running(0, phase="backward")], NOW)
    assert text.startswith("no verdict yet; 1 rank of it running here\n")
    assert text.count("rank 0") == 1
    assert "rank 1  no checkpoint yet  last line 2026-11-20T10:29:00.000Z" in text
