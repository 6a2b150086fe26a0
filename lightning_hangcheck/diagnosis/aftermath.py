"""The job is over, and a hang had been proven: did it end well after all, or how else?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.asked_end import asked_end
from lightning_hangcheck.diagnosis.departures import left_well
from lightning_hangcheck.diagnosis.engine import conclude

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case


def ended_well(case: Case) -> bool:
    """Whether a job is seen to have ended by itself and without a fault."""
    if case.asked_end is not None or conclude(case).kind != "finished":
        return False
    return case.exit_code == 0 or all(map(left_well, case.ranks))


def aftermath_of(case: Case) -> str:
    """Say how a job ended in which a hang stood, as in `Aftermath`.

    Args:
        case: Of the job that has ended.
    """
    conclusion = conclude(case)
    asked = asked_end(conclusion.scene)
    if conclusion.finding is not None:
        return f"the job ended: {conclusion.finding.sentence}"
    if asked is not None:
        return f"the job was ended by {asked.by}"
    return "the job ended, and nobody saw how"
