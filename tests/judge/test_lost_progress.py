"""What a restart would throw away, and the advice that would lose less."""

from __future__ import annotations

import msgspec
from cases import IN_ALL_REDUCE, IN_LOAD, gone, job, rank

from lightning_hangcheck.judge import judge
from lightning_hangcheck.judge.summary import lost_progress
from lightning_hangcheck.model.beat import Beat, SaveMark
from lightning_hangcheck.model.case import Case, RankView, Spent

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


MINUTE = 60.0


def trained(view: RankView, minutes: float, epoch_s: float | None, saves: int = 0) -> RankView:
    """The rank after so long a training, of two steps a second."""
    spent = Spent(
        saves=saves, steps=int(minutes * 120), training_s=minutes * MINUTE, epoch_s=epoch_s
    )
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
