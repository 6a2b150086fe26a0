"""Outcomes of runs that never were, in a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.smoke.sequence import Outcome, plan_trials

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.smoke.sequence import Result

WHOLE = "train.py {devices} {workers}"


def outcomes(results: str, command: str = WHOLE, verdict: Verdict | None = None) -> list[Outcome]:
    """One outcome for each planned run.

    Args:
        results: ``.`` passed, ``H`` hang, ``L`` late, ``F`` failed; one sign a run.
        command: With placeholders.
        verdict: Of every run that did not pass.
    """
    kinds: dict[str, Result] = {".": "passed", "H": "hang", "L": "late", "F": "failed"}
    trials = plan_trials(command.split())
    return [
        Outcome(
            trial=trial,
            result=kinds[sign],
            seconds=12.34,
            where="" if sign == "." else "rank 1 stands still in load (train.py:41)",
            verdict=None if sign == "." else verdict,
            run_folder=f"hangcheck_runs/x-{trial.slug}",
        )
        for trial, sign in zip(trials, results, strict=True)
    ]
