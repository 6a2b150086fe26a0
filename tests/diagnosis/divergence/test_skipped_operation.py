"""An operation that one rank started and went on from, and another walked past."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import IN_BACKWARD, IN_BARRIER, job, rank, user, with_threads
from msgspec.structs import replace

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.evidence import ThreadStack
from lightning_hangcheck.model.flight import CollectiveEntry, CollectiveRecord, FlightRecord

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict

SAVING = 777
SAVER = ThreadStack(tid=201, name="saver", ident=SAVING, frames=(user("save", 60),))
NAMES = {"a": ("0", "all_reduce"), "b": ("1", "barrier")}


def entering(view: RankView, letters: str, still_open: str, of_save: int = 0) -> RankView:
    """Give a rank a record of two groups: ``a`` of the steps, ``b`` of saves.

    Args:
        view: The rank.
        letters: What it entered, oldest first.
        still_open: Of which groups the newest has not ended.
        of_save: Thread that entered ``b``.
    """
    groups = []
    for letter, (group, op) in NAMES.items():
        at = [when for when, one in enumerate(letters, start=1) if one == letter]
        ended = len(at) - (letter in still_open)
        entries = tuple(
            CollectiveEntry(
                seq=seq,
                op=op,
                retired=seq <= ended,
                created_ns=when,
                thread=of_save * (letter == "b"),
            )
            for seq, when in enumerate(at, start=1)
        )
        groups.append(
            CollectiveRecord(
                group=group,
                ranks=(0, 1, 2, 3),
                last_enqueued=len(at),
                last_completed=ended,
                entries=entries,
            )
        )
    return replace(view, flight=FlightRecord(taken_ns=1, groups=tuple(groups)))


def waiting_for_save(number: int, letters: str) -> RankView:
    """A rank that asks for the end of a save that it started before."""
    return entering(rank(number, IN_BARRIER, silent=6.0), letters, "b")


def stepping(number: int, letters: str) -> RankView:
    """A rank that waits for the others in its step."""
    return entering(rank(number, IN_BACKWARD, silent=6.0), letters, "a")


def gone_on(number: int, letters: str) -> RankView:
    """A rank whose thread waits for the end of a save, while it waits itself in its step."""
    view = with_threads(rank(number, IN_BACKWARD, silent=6.0), SAVER, takes_lock=False)
    return entering(view, letters, "ab", SAVING)


def judged(*views: RankView) -> Verdict:
    return judge(job(*views))


@pytest.mark.parametrize("steps", [3, 20])
def test_who_walked_past_what_earlier_steps_had_is_the_culprit(steps: int) -> None:
    saving = "a" * steps + "b"
    verdict = judged(
        waiting_for_save(0, saving * 3 + "aa"), stepping(1, saving * 2 + "a" * (steps + 3))
    )
    assert (verdict.verdict, verdict.cause) == ("hang", "rank_diverged")
    assert (verdict.culprits, verdict.victims) == ((1,), (0,))
    assert "last agreed #2 of group 1: did no such operation, now waits in" in verdict.summary
    assert "rank 1 left out what " in verdict.remedies[0].text
    (row,) = [one for one in verdict.collectives if one.group == "1"]
    assert (row.seq, row.ops) == (3, {"barrier": "0", "no such operation": "1"})


def test_who_started_it_too_is_no_culprit_though_most_wait_elsewhere() -> None:
    """Ranks 2 and 3 have come to the save and gone on: they wait for rank 0 in the next step."""
    saving = "aaab"
    verdict = judged(
        waiting_for_save(0, saving * 3 + "aa"),
        stepping(1, saving * 2 + "aaaaaa"),
        *(gone_on(n, saving * 3 + "aaa") for n in (2, 3)),
    )
    assert verdict.culprits == (1,)


def test_threads_that_enter_side_by_side_come_a_step_sooner_or_later() -> None:
    """As far as the ranks were apart before, and no farther."""
    verdict = judged(
        waiting_for_save(0, "aaaaab" + "aaaaaab" + "aaaaab" + "aa"),
        stepping(1, "aaaaaab" + "aaaaaab" + "aaaaaaaa"),
    )
    assert verdict.culprits == (1,)


@pytest.mark.parametrize(
    "early",
    ["aab" + "a", "aaaaaab" + "a"],
    ids=["sooner than ever", "later than ever"],
)
def test_where_no_earlier_step_had_it_there_nobody_is_named_for_it(early: str) -> None:
    saving = "aaab"
    past = early.replace("b", "") + "a"
    verdict = judged(waiting_for_save(0, saving * 2 + early), stepping(1, saving * 2 + past))
    assert verdict.culprits != (1,)
