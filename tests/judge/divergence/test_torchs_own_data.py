"""The pairs of records on which torch tests its own analyzer, judged by ours.

After ``test/distributed/flight_recorder/test_fr_analysis.py`` of pytorch/pytorch (2026): operation,
sizes and state of two ranks under one number of the default group, and what torch's analyzer says.
Where we say less, there is a reason; a culprit is never named where two ranks differ and nothing
tells who is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_LOAD, MAIN, job, rank, torch, user
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.flight import CollectiveEntry, CollectiveRecord, FlightRecord

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

SQUARE = (4, 4)
ALL_REDUCE = CollectiveEntry(seq=1, op="all_reduce", sizes=(SQUARE,), dtypes=("Float",))
OTHER_SIZE = replace(ALL_REDUCE, sizes=((5, 4),))
OTHER_TYPE = replace(ALL_REDUCE, dtypes=("Half",))
ALL_GATHER = replace(ALL_REDUCE, op="all_gather")
ALL_TO_ALL = replace(ALL_REDUCE, op="all_to_all")
GATHER = replace(ALL_REDUCE, op="gather")
ENDED = replace(ALL_REDUCE, retired=True)


def recorded(number: int, entry: CollectiveEntry) -> RankView:
    """A rank that waits in this operation; one that ended it has gone on."""
    inside = (MAIN, user("step", 90), torch(entry.op))
    view = rank(number, IN_LOAD if entry.retired else inside, silent=40.0)
    record = CollectiveRecord(
        group="0",
        description="default_pg",
        ranks=(0, 1),
        on_device=True,
        last_enqueued=entry.seq,
        last_completed=entry.seq if entry.retired else entry.seq - 1,
        entries=(entry,),
    )
    return replace(view, flight=FlightRecord(taken_ns=1, groups=(record,)))


@pytest.mark.parametrize(
    ("first", "second", "torch_says"),
    [
        (ALL_REDUCE, ALL_GATHER, "COLLECTIVE_TYPE_MISMATCH"),
        (ALL_REDUCE, OTHER_SIZE, "SIZE_OR_SYNTAX_MISMATCH"),
        (ALL_REDUCE, OTHER_TYPE, "COLLECTIVE_DTYPE_MISMATCH"),
    ],
)
def test_what_torch_finds_between_two_ranks_is_found(
    first: CollectiveEntry, second: CollectiveEntry, torch_says: str
) -> None:
    verdict = judge(job(recorded(0, first), recorded(1, second)))
    assert verdict.verdict == "hang", torch_says
    assert verdict.cause in ("collective_mismatch", "rank_diverged")
    assert verdict.culprits == (0, 1)


@pytest.mark.parametrize(
    ("first", "second", "torch_says"),
    [
        (ALL_REDUCE, ALL_REDUCE, "FULLY_MATCHED"),
        (GATHER, GATHER, "FULLY_MATCHED"),
        (ALL_TO_ALL, ALL_TO_ALL, "UNDECIDED"),
        (ALL_REDUCE, ENDED, "COLLECTIVE_STATE_MISMATCH"),
    ],
    ids=["equal", "gather", "all_to_all", "one is a moment ahead"],
)
def test_where_ranks_agree_nobody_parted(
    first: CollectiveEntry, second: CollectiveEntry, torch_says: str
) -> None:
    """Torch calls it a mismatch, too, that one rank ended what the other has open.

    That is how ranks look of which one is behind, or whose records were taken moments apart.
    """
    verdict = judge(job(recorded(0, first), recorded(1, second)))
    assert verdict.cause not in ("collective_mismatch", "rank_diverged"), torch_says
