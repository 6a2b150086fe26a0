"""Where ways part: by frames, by numbers, and by an operation that one rank walked past."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from cases import (
    C10D,
    IN_ALL_REDUCE,
    IN_BACKWARD,
    IN_BARRIER,
    IN_LOAD,
    MAIN,
    gone,
    job,
    rank,
    torch,
    user,
)
from flights import (
    AFTER_LOOP,
    IN_HOOK,
    IN_LOOP,
    IN_NEW_GROUP,
    PARKED,
    flying,
)
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.evidence import Frame, ThreadStack
from lightning_hangcheck.model.flight import (
    CallSite,
    CollectiveEntry,
    CollectiveRecord,
    FlightRecord,
)

if TYPE_CHECKING:
    from cases import Frames

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.verdict import Verdict


def test_a_mismatch_is_proven_and_so_called_early() -> None:
    def at(seconds: float) -> str:
        ways = (("barrier", IN_BARRIER), ("all_reduce 4", IN_ALL_REDUCE))
        return judge(
            job(*(flying(rank(n, way, silent=seconds), op) for n, (op, way) in enumerate(ways)))
        ).verdict

    assert [at(1.0), at(4.0), at(10.0)] == ["healthy", "suspect", "hang"]


@pytest.mark.parametrize(
    "late",
    [
        rank(1, IN_LOAD, silent=11.0),  # has not come yet
        rank(1, IN_LOAD, (MAIN, user("load", 43)), cpu=0.9, silent=11.0),  # works
    ],
)
def test_a_rank_that_is_only_late_has_not_parted(late: RankView) -> None:
    ahead = flying(rank(0, IN_ALL_REDUCE, silent=11.0), "all_reduce 4", "all_reduce 4")
    verdict = judge(job(ahead, flying(late, "all_reduce 4", open_ops=0)))
    assert verdict.cause not in ("rank_diverged", "collective_mismatch", "uneven_work")


def test_ranks_in_the_same_operation_have_not_parted() -> None:
    same = [flying(rank(n, IN_ALL_REDUCE, silent=60.0), "all_reduce 4") for n in range(2)]
    assert judge(job(*same)).verdict == "healthy"


def test_records_taken_a_moment_apart_show_no_mismatch() -> None:
    """One was read before the operation ended, the other after, when it was in the next already."""
    case = job(
        flying(rank(0, IN_ALL_REDUCE, silent=20.0), "barrier", "all_reduce 4"),
        flying(rank(1, IN_ALL_REDUCE, silent=20.0), "barrier", "all_reduce 4", "all_reduce 4"),
    )
    assert judge(case).cause not in ("rank_diverged", "collective_mismatch", "uneven_work")


def test_an_operation_that_just_ended_shows_no_mismatch() -> None:
    """Both stand in the same call; the record of one was taken when it had ended already."""
    case = job(
        flying(rank(0, IN_ALL_REDUCE, silent=20.0), "barrier", "all_reduce 4"),
        flying(rank(1, IN_ALL_REDUCE, silent=20.0), "barrier", "all_reduce 4", open_ops=0),
    )
    assert judge(case).cause not in ("rank_diverged", "collective_mismatch", "uneven_work")


def test_what_a_gather_takes_may_differ_in_size() -> None:
    case = job(flying(rank(0, IN_BARRIER), "gather 4"), flying(rank(1, IN_BARRIER), "gather 1000"))
    assert judge(case).cause != "collective_mismatch"


@pytest.mark.parametrize(
    ("ops", "cause"),
    [(("recv",) * 3, "collective_mismatch"), (("send", "recv", "recv"), None)],
)
def test_ranks_that_all_receive_wait_for_a_sender_that_is_none(
    ops: tuple[str, ...], cause: str | None
) -> None:
    """With a sender among them, a long transfer looks the same."""
    ways = [(MAIN, user("pass_on", 9), torch(op)) for op in ops]
    assert judge(job(*(rank(n, way) for n, way in enumerate(ways)))).cause == cause


def test_a_rank_that_ended_well_after_fewer_steps_ran_out_of_work() -> None:
    beat = Beat(pid=101, rank=1, beats=40, step=30, ending="finished")
    left = replace(gone(1, 0), beat=beat)
    waits = rank(0, IN_ALL_REDUCE, beat=Beat(pid=100, rank=0, beats=40, step=31))
    verdict = judge(job(waits, left))
    assert (verdict.culprits, verdict.cause) == ((1,), "uneven_work")
    same_step = replace(left, beat=replace(beat, step=31))
    assert judge(job(waits, same_step)).cause == "process_dead"


def test_parting_long_before_the_wait_is_found() -> None:
    """An extra broadcast that ended at once, because its root waits for nobody, shifts the rest."""
    case = job(
        flying(rank(0, IN_LOOP), "all_reduce 4", "broadcast 1", "all_reduce 4", "all_reduce 4"),
        flying(rank(1, IN_LOOP), "all_reduce 4", "all_reduce 4", open_ops=1),
    )
    verdict = judge(case)
    assert verdict.culprits == (0,)
    assert "last agreed at #1 of the default group" in verdict.summary


IN_STEP = CallSite((MAIN, user("train", 20), user("step", 90)))
IN_LOG = CallSite((MAIN, user("train", 22), user("Log.write", 55)))
AT_END = CallSite((MAIN, user("train", 30)))


def test_two_ways_to_one_operation_are_no_parting() -> None:
    """Rank 0 broadcasts from another line than the rest receives; what parts them comes later."""
    ops = ["all_reduce 4", "broadcast 1", "all_reduce 4"]
    case = job(
        flying(rank(0, IN_LOOP), *ops, "all_reduce 4", called=[IN_STEP, IN_LOG, IN_STEP, IN_STEP]),
        flying(rank(1, AFTER_LOOP), *ops, "barrier", called=[IN_STEP, AT_END, IN_STEP, AT_END]),
    )
    assert "last agreed at #3" in judge(case).summary


@pytest.mark.parametrize(("open_ops", "verdict"), [(2, "hang"), (1, "healthy")])
@pytest.mark.parametrize("differs", ["root", "shape", "kind"])
def test_what_differs_is_a_mismatch_until_all_ranks_have_been_through_it(
    differs: str, open_ops: int, verdict: str
) -> None:
    """All wait in one barrier: who has ended the operation before it is not held up by that."""
    ops = {"root": ("broadcast 1",) * 2, "shape": ("broadcast 1", "broadcast 2")}
    first = ops.get(differs, ("broadcast 1", "all_reduce 1"))
    roots = [CallSite((MAIN, user("step", 88)), root=f"root {n}") for n in range(2)]
    sites = roots if differs == "root" else [roots[0]] * 2
    case = job(
        *(
            flying(
                rank(n, IN_BARRIER), first[n], "barrier",
                called=[sites[n], AT_END], open_ops=open_ops,
            )
            for n in range(2)
        )
    )  # fmt: skip
    judged = judge(case)
    assert judged.verdict == verdict
    if open_ops == 2:
        assert (judged.culprits, judged.cause) == ((0, 1), "collective_mismatch")


def test_a_root_that_only_one_rank_noted_is_no_mismatch() -> None:
    noted = flying(rank(0, IN_BARRIER), "broadcast 1", "barrier", called=[IN_LOG, AT_END])
    case = job(noted, flying(rank(1, IN_BARRIER), "broadcast 1", "barrier"))
    assert judge(case).cause != "collective_mismatch"


def test_two_pairs_of_ranks_in_their_own_groups_may_be_at_work() -> None:
    """Each waits with its partner: a long transfer looks the same."""
    ranks = [
        flying(rank(n, IN_ALL_REDUCE, silent=200.0), "all_reduce 4", group="1" if n < 2 else "2")
        for n in range(4)
    ]
    assert judge(job(*ranks)).cause not in ("rank_diverged", "collective_mismatch")


@pytest.mark.parametrize("way", [IN_HOOK, (MAIN, user("save", 7), Frame("barrier", C10D, 1))])
def test_without_a_record_frames_tell_with_less_confidence(way: Frames) -> None:
    """A rank in the user's hook against one that Lightning parked at its next step."""
    verdict = judge(job(rank(0, way), rank(1, PARKED)))
    assert (verdict.verdict, verdict.culprits, verdict.cause) == ("hang", (0,), "rank_diverged")
    assert verdict.confidence == 0.6
    assert "flight record" in [gap.what for gap in verdict.gaps]
    early = judge(job(rank(0, way, silent=11.0), rank(1, PARKED, silent=11.0)))
    assert early.verdict == "suspect"


def test_ranks_that_make_the_same_group_are_only_on_their_way() -> None:
    ways = (flying(rank(n, IN_NEW_GROUP), group="1", ranks=(0, 1)) for n in range(2))
    assert judge(job(*ways)).cause not in ("collective_mismatch", "rank_diverged")


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
    assert "rank 1 skipped #3 and now waits in" in verdict.summary
    assert "last agreed at #2 of group 1" in verdict.summary
    assert "rank 1 left out what " in verdict.remedies[0].text
    (row,) = [one for one in verdict.collectives if one.group == "1"]
    assert (row.seq, row.ops) == (3, {"barrier": "0", "no such operation": "1"})


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
