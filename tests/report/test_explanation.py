"""Whom the sentence on a cause speaks of: one process, one rank of several, all ranks."""

from __future__ import annotations

from cases import IN_BARRIER, IN_WANDB, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.report.verdict_text import render


def test_all_ranks_in_the_logger_are_not_one_rank() -> None:
    case = job(rank(0, IN_WANDB, silent=400.0), rank(1, IN_WANDB, silent=400.0))
    verdict = judge(case)
    assert (verdict.cause, verdict.culprits) == ("logger_init", (0, 1))
    text = " ".join(render(case, verdict, "run").split())
    assert "All ranks create the logger, and none of them comes back" in text
    assert "One rank" not in text
    assert "WANDB_MODE=disabled for rank != 0" in text


def test_one_rank_in_the_logger_is_one() -> None:
    case = job(rank(0, IN_WANDB, silent=400.0), rank(1, IN_BARRIER, silent=400.0))
    verdict = judge(case)
    assert (verdict.cause, verdict.culprits) == ("logger_init", (0,))
    assert "One rank creates the logger" in " ".join(render(case, verdict, "run").split())
