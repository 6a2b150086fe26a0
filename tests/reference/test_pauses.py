"""The uneven pauses of the soak: within their bounds, long-tailed, and the same in every run."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from reference.pauses import LONGEST_S, SHARE, SHORTEST_S, Pauses

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = 20_000


def _of(rank: int) -> Iterator[float]:
    pauses = Pauses(rank)
    return iter(pauses.next_s, None)


def test_every_run_has_the_same_pauses_and_every_rank_its_own() -> None:
    first, again, other = (list(islice(_of(rank), 50)) for rank in (1, 1, 0))
    assert first == again
    assert first != other


def test_most_pauses_are_short_and_none_is_out_of_bounds() -> None:
    pauses = sorted(seconds for seconds in islice(_of(0), STEPS) if seconds)
    assert abs(len(pauses) / STEPS - SHARE) < 0.02
    assert SHORTEST_S <= pauses[0] <= pauses[-1] == LONGEST_S
    assert pauses[len(pauses) // 2] < 0.2
    assert 0.04 < sum(seconds > 2 for seconds in pauses) / len(pauses) < 0.07
