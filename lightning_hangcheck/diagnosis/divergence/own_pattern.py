"""Which rank departs, in its sends and receives, from what its own earlier steps did? Pure.

A step of a pipeline or of a halo exchange posts the same messages as the one before. Who posts one
more or less, or to another peer, breaks off the repetition; those who then wait for messages that
never come do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.divergence.agreements import agreements

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.diagnosis.job import JobReading

FEWEST_TIMES = 3
"""How often a step must have been repeated to be a pattern."""
MOST_SINCE = 2
"""Steps since the departure: torch hands some messages over before the other end asks for them."""
STARTS_TRIED = 64
"""Messages at the beginning that may belong to no step: set up, or half a step in what is kept."""


def departed_in_messages(job: JobReading) -> tuple[int, ...]:
    """Return the ranks whose newest messages depart from their own pattern.

    Returns:
        None of them where nobody is seen to follow a pattern, or no fewer depart than follow one.
    """
    departs: list[int] = []
    follows: list[int] = []
    known: dict[int, list[bool | None]] = {}
    for rank, reading in job.ranks.items():
        flight = reading.view.flight
        counts = flight.messages if flight is not None else None
        if counts is None or not counts.newest:
            continue
        told_by = reading.told_by_rank  # the pattern of peers moved is the pattern
        if told_by not in known:
            known[told_by] = [departs_from_pattern(one) for one in counts.newest]
        told = known[told_by]
        if any(told):
            departs.append(rank)
        elif all(one is False for one in told):
            follows.append(rank)
    return tuple(departs) if len(departs) < len(follows) else ()


def departs_from_pattern(posted: Sequence[int]) -> bool | None:
    """Whether the newest messages of a thread break off what it repeated before.

    Args:
        posted: Oldest first, as `MessageCounts.newest` has them.

    Returns:
        None where it repeats nothing.
    """
    for start in range(min(STARTS_TRIED, len(posted))):
        kept = posted[start:]
        period, end = _repetition(kept)
        if period and end >= FEWEST_TIMES * period and 2 * end >= len(kept):
            return _is_recent(len(kept) - end, period)
    return None


def _is_recent(since: int, period: int) -> bool | None:
    """Whether so many messages since the end of the repetition are a departure; 0 are none."""
    if since > MOST_SINCE * period:
        return None
    return since > 0


def _repetition(posted: Sequence[int]) -> tuple[int, int]:
    """Return the period that a sequence repeats from its beginning for longest, and until where."""
    best = (0, 0)
    for moved, length in enumerate(agreements(posted)):
        if length >= moved > 0 and moved + length > best[1]:
            best = moved, moved + length
    return best
