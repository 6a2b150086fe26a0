"""Runs as the ledger has them."""

from __future__ import annotations

from lightning_hangcheck.ledger.ledger_file import Run
from lightning_hangcheck.model.case import PhaseTime

AT = "2026-11-20T10:00:00.000Z"


def run(command: str, duration_s: float, verdict: str = "finished", loading_s: float = 0.0) -> Run:
    """A run of two ranks, each of which loaded its model for so long."""
    return Run(
        id="1",
        at=AT,
        run_id="20261120T100000-aaaa",
        command=command,
        started_at=AT,
        duration_s=duration_s,
        ranks=2,
        verdict=verdict,
        exit_code=0 if verdict == "finished" else 1,
        spent=(PhaseTime("model_load", 2 * loading_s), PhaseTime("training_step", 5.0)),
    )
