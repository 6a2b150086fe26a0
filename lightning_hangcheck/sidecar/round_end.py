"""What the end of a round comes to, once another round has followed it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.round import Round

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict


def end_round(case: Case, started_at: str, hang: Verdict | None) -> tuple[Verdict, Round]:
    """Judge a round that has ended.

    Args:
        case: Of the round's ranks, with what followed.
        started_at: When the first of them was seen.
        hang: That stood when the round ended: what its ranks died of then is not its cause.

    Returns:
        The verdict to tell, and the round as it is remembered.
    """
    from lightning_hangcheck.diagnosis import judge
    from lightning_hangcheck.diagnosis.summaries import own_end

    verdict = judge(case)
    if hang is None or verdict.verdict == "finished":
        alone = replace(verdict, summary=own_end(case))
        return verdict, describe_round(case.run.round, started_at, alone)
    told = _after_hang(case, hang, verdict)
    return told, describe_round(case.run.round, started_at, replace(hang, summary=_hung(hang)))


def describe_round(number: int, started_at: str, verdict: Verdict) -> Round:
    """Describe a round that has ended, for run.json and for the verdicts to come.

    Args:
        number: Of the round.
        started_at: When its first rank was seen.
        verdict: What its end came to.
    """
    return Round(
        number=number,
        started_at=started_at,
        world_size=verdict.world_size,
        ended_at=verdict.detected_at,
        verdict=verdict.verdict,
        culprits=verdict.culprits,
        cause=verdict.cause,
        summary=verdict.summary,
    )


def _after_hang(case: Case, hang: Verdict, ended: Verdict) -> Verdict:
    from lightning_hangcheck.diagnosis.rounds import end_of_round

    return replace(
        hang,
        verdict="crashed",
        detected_at=ended.detected_at,
        stalled_since=None,
        stalled_for_s=0.0,
        ranks=ended.ranks,
        summary=end_of_round(_hung(hang), case.run),
    )


def _hung(hang: Verdict) -> str:
    return f"it hung: {hang.summary}"
