"""What a slow job and a restart lose: whose work grew, and the steps since the last save."""

from __future__ import annotations

import msgspec
from cases import IN_ALL_REDUCE, IN_LOAD, gone, job, rank
from msgspec.structs import replace

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.summary import lost_progress
from lightning_hangcheck.model.beat import Beat, SaveMark, Slowness, SlowRank, StepTimes
from lightning_hangcheck.model.case import Case, RankView, Spent
from lightning_hangcheck.model.verdict import Edge, Verdict

AT = "2026-11-20T10:22:00Z"


def stepped(
    view: RankView, step: int | None, save: SaveMark | None = None, unsaved_s: float | None = None
) -> RankView:
    """The rank with this on its page."""
    beat = Beat(pid=1, step=step, save=save)
    return msgspec.structs.replace(view, beat=beat, spent=Spent(unsaved_s=unsaved_s))


def lost(*ranks: RankView) -> str:
    return lost_progress(job(*ranks))


def test_steps_and_time_since_the_last_save_are_lost_for_every_rank() -> None:
    ranks = [stepped(rank(n, silent=0.0), 12, SaveMark(1, AT, 10), 90.0) for n in range(2)]
    assert lost(*ranks) == "last checkpoint step 10; 2 steps, 90 s, 3 rank minutes are lost"


def test_where_only_rank_0_saves_its_save_counts_for_the_job() -> None:
    saver = stepped(rank(0, silent=0.0), 12, SaveMark(3, AT, 12), 1.0)
    assert lost(saver, stepped(rank(1), 12)) == "last checkpoint step 12; nothing is lost"


def test_a_hang_and_a_crash_say_it_beside_their_evidence_and_a_suspicion_does_not() -> None:
    told = "last checkpoint step 10; 2 steps are lost"
    save = SaveMark(1, AT, 10)
    stuck = [rank(0, IN_ALL_REDUCE, silent=40.0), rank(1, IN_LOAD, silent=40.0)]
    fresh = [rank(0, IN_ALL_REDUCE, silent=6.0), rank(1, IN_LOAD, silent=6.0)]
    failed = [gone(0, -15, order=1), gone(1, 1)]
    for views, ended, kind in (
        (stuck, False, "hang"),
        (fresh, False, "suspect"),
        (failed, True, "crashed"),
    ):
        case = job(*(stepped(view, 12, save) for view in views), ended=ended)
        verdict = judge(case)
        assert verdict.verdict == kind
        expected = [] if kind == "suspect" else [told]
        assert [item.text for item in verdict.evidence if item.kind == "lost"] == expected


def trained(view: RankView, minutes: float, epoch_s: float | None, saves: int = 0) -> RankView:
    """The rank after so long a training, of two steps a second."""
    spent = Spent(saves=saves, steps=int(minutes * 120), training_s=minutes * 60.0, epoch_s=epoch_s)
    return msgspec.structs.replace(view, beat=Beat(pid=1), spent=spent)


def ended(minutes: float, epoch_s: float | None, saves: int = 0) -> Case:
    ranks = [trained(gone(0, 0), minutes, epoch_s, saves), trained(gone(1, 0), minutes, epoch_s)]
    return job(*ranks, ended=True, exit_code=0)


def test_it_is_told_with_the_end_of_a_job_and_not_before() -> None:
    over = judge(ended(45, 60.0))
    assert [item.kind for item in over.evidence] == ["saves"]
    standing = trained(rank(0, IN_LOAD, silent=0.0), 45, 60.0)
    assert "saves" not in [item.kind for item in judge(job(standing)).evidence]
    failed = judge(job(trained(gone(0, 1), 45, 60.0), ended=True, exit_code=1))
    assert failed.verdict == "crashed"
    assert "saves" in [item.kind for item in failed.evidence]


# Ranks that make steps far below their own pace: whose work it is, and in which part.

BEFORE = StepTimes(1, 0.1, 0.2, 0.1)


def slow(number: int, loader: float, forward: float, rest: float, **fields: object) -> SlowRank:
    """A rank whose step takes these seconds now, and took 0.4 s before."""
    now = StepTimes(1, loader, forward, rest)
    facts = {"known_s": 0.4, "level_s": now.seconds, "before": BEFORE, **fields}
    return SlowRank(rank=number, now=now, **facts)


def told(*ranks: SlowRank) -> Verdict:
    """The verdict on ranks that advance, these of them slowly."""
    case = job(*(rank(number, silent=0.1) for number in range(2)))
    return judge(replace(case, slowness=Slowness(for_s=200.0, ranks=ranks)))


def test_the_rank_whose_own_work_grew_is_blamed_and_who_waits_is_a_victim() -> None:
    verdict = told(slow(0, 0.1, 0.2, 3.7), slow(1, 3.7, 0.2, 0.1))
    assert (verdict.verdict, verdict.cause) == ("slow", "slow_progress")
    assert (verdict.culprits, verdict.victims, verdict.phase) == ((1,), (0,), "dataloading")
    assert verdict.summary.startswith(
        "rank 1 has been slow for 3 min: a step takes 4 s instead of 0.4 s; "
        "most of that in loader: 3.7 s instead of 0.1 s; rank 0 waits for it"
    )
    assert verdict.wait_for == (Edge("rank:0", "rank:1", "each step"),)
    assert "waits for its batches" in verdict.remedies[0].text


def test_ranks_that_are_slow_alike_are_all_blamed() -> None:
    verdict = told(slow(0, 0.1, 3.7, 0.2), slow(1, 0.1, 3.7, 0.2))
    assert (verdict.culprits, verdict.victims, verdict.phase) == ((0, 1), (), "training_step")
    assert "most of that in forward of rank" in verdict.summary


def test_where_nobodys_own_work_grew_nobody_is_singled_out() -> None:
    verdict = told(slow(0, 0.1, 0.2, 3.7), slow(1, 0.1, 0.2, 3.7))
    assert (verdict.culprits, verdict.confidence) == ((0, 1), 0.5)
    assert "most of that in backward, optimizer and waiting" in verdict.summary
    assert "who waits for whom is unknown" in verdict.summary


def test_ranks_that_are_slow_alike_may_have_other_work_and_must_be_slower() -> None:
    alike = slow(0, 0.1, 1.4, 0.1), slow(1, 0.1, 1.4, 0.1)
    assert told(*alike).verdict == "healthy"
    assert told(slow(0, 0.1, 0.2, 1.3), slow(1, 1.3, 0.2, 0.1)).verdict == "slow"


def test_looks_tell_who_works_while_the_others_wait() -> None:
    whole = {"before": StepTimes(1, 0.0, 0.0, 0.4), "in_parts": False, "looks": 10}
    waits = slow(0, 0.0, 0.0, 1.4, waited=9, **whole)
    works = slow(1, 0.0, 0.0, 1.4, waited=1, place=IN_LOAD[-1], **whole)
    verdict = told(waits, works)
    assert (verdict.verdict, verdict.culprits, verdict.victims) == ("slow", (1,), (0,))
    assert "seen in load (demo/train.py:41); rank 0 waits for it" in verdict.summary
    seldom = replace(works, waited=5)
    both = told(replace(waits, level_s=4.0), replace(seldom, level_s=4.0))
    assert both.culprits == (0, 1)
