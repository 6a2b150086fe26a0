"""What rules say alike of ranks that do not get on: who, doing what, where, how long, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.rules.finding import blame
from lightning_hangcheck.diagnosis.wording import duration, join, name_ranks, verb, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.rules.finding import Certainty, Finding, Situation
    from lightning_hangcheck.diagnosis.scene import RankReading
    from lightning_hangcheck.model.slugs import Cause


def blame_standing(
    situation: Situation,
    standing: Sequence[RankReading],
    cause: Cause,
    certainty: Certainty,
    *,
    doing: str,
    manner: str,
    confidence: float,
) -> Finding:
    """Blame ranks in one sentence: ``rank 1 has DOING in load (train.py:41) for 31 s MANNER``.

    Args:
        situation: At hand.
        standing: At least one; the first gives the place.
        cause: Slug.
        certainty: As in `Finding`.
        doing: Behind "has" or "have".
        manner: What was missing all that time.
        confidence: As in `Finding`.
    """
    who = [reading.rank for reading in standing]
    sentence = join(
        name_ranks(who),
        verb(who, "has", "have"),
        doing,
        within(standing[0].place),
        f"for {duration(max(reading.silence_s for reading in standing))} {manner}",
    )
    return blame(standing, cause, certainty, confidence, sentence, waited_for=situation.waited_for)
