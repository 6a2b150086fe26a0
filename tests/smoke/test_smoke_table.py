"""The sequence."""

from __future__ import annotations

from cases import IN_WANDB, job, rank
from smoke.smoke_outcomes import outcomes

from lightning_hangcheck.judge import judge
from lightning_hangcheck.smoke import sequence


def test_all_passed() -> None:
    lines = sequence.render(outcomes("...")).splitlines()
    assert lines[0] == "SMOKE  3 runs passed"
    assert lines[2:5] == [
        "      2 ranks, 0 workers  passed  12.3 s",
        "      2 ranks, 1 worker   passed  12.3 s",
        "      1 process           passed  12.3 s",
    ]
    assert lines[-1].startswith("      means    the runs that usually show a hang")


def test_the_first_that_hangs_with_its_place_picture_and_meaning() -> None:
    verdict = judge(job(rank(0, IN_WANDB, silent=400.0), rank(1, IN_WANDB, silent=400.0)))
    text = sequence.render(outcomes("HH.", verdict=verdict))
    lines = text.splitlines()
    assert lines[0] == "SMOKE  2 ranks, 0 workers: hangs; 1 of 3 runs passed"
    assert lines[2] == "      2 ranks, 0 workers  HANG    12.3 s  logger_init  phase logger_init"
    assert "      where    rank 1 stands still in load (train.py:41)" in lines
    assert "      pattern  at the logger: all ranks are creating" in text
    assert "      means    only with 2 ranks" in text
    assert f"      do       1. {verdict.remedies[0].text[:40]}" in text
    assert "2. look for calls under a rank condition" in text
    assert "      more     hangcheck report hangcheck_runs/x-2-ranks-0-workers" in lines
    assert len(lines) <= 40
