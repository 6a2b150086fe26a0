"""What a sidecar's notes are worth to `attach`: fresh, old, of other processes, and withdrawn."""

from __future__ import annotations

from msgspec.structs import replace

from lightning_hangcheck.attach.recorded_session import hang_stands, history
from lightning_hangcheck.model.case import Case, RankView, RunFacts
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.run_record import RankNote, WatchNotes
from lightning_hangcheck.text.shown import NANOSECONDS

WRITTEN_NS = 1_000 * NANOSECONDS
AT = "2026-11-20T10:24:16.000Z"
RANK = FoundRank(rank=1, pid=17, started_ticks=99)
NOTE = RankNote(
    rank=1, pid=17, started_ticks=99, silent_for_s=60.0, idle_for_s=50.0, circling_for_s=70.0
)
HANG = Verdict(
    verdict="hang",
    run_id="r",
    command="",
    started_at=AT,
    detected_at=AT,
    stalled_for_s=31.0,
    world_size=2,
    culprits=(1,),
)
TOLD_NS = WRITTEN_NS - 30 * NANOSECONDS
NOTES = WatchNotes(written_ns=WRITTEN_NS, ranks=(NOTE,), newest=HANG, told_ns=TOLD_NS)


def after(seconds: float) -> int:
    return WRITTEN_NS + int(seconds * NANOSECONDS)


def case(silent_for_s: float, seconds_later: float) -> Case:
    return Case(
        run=RunFacts(run_id="r", command="", started_at=AT),
        taken_at=AT,
        taken_ns=after(seconds_later),
        ranks=(RankView(rank=1, pid=17, silent_for_s=silent_for_s),),
    )


def test_fresh_notes_are_brought_up_to_the_present() -> None:
    known_of, gaps = history(NOTES, [RANK], {}, after(2.0))
    known = known_of[1]
    assert (known.silent_for_s, known.idle_for_s, known.circling_for_s) == (62.0, 52.0, 72.0)
    assert gaps == ()


def test_old_notes_count_for_a_rank_that_has_slept_since_and_a_gap_says_that_they_are_old() -> None:
    known, (gap,) = history(NOTES, [RANK], {17: 100.0}, after(90.0))
    assert known[1].silent_for_s == 150.0
    assert history(NOTES, [RANK], {17: 80.0}, after(90.0))[0] == {}
    assert history(NOTES, [RANK], {}, after(90.0))[0] == {}
    assert "90 s old" in gap.why


def test_notes_of_an_earlier_process_of_that_id_say_nothing() -> None:
    other = FoundRank(rank=1, pid=17, started_ticks=100)
    assert history(NOTES, [other], {17: 100.0}, after(1.0))[0] == {}


def test_a_hang_that_was_told_stands_until_it_is_withdrawn_or_somebody_advances() -> None:
    assert hang_stands(NOTES, case(70.0, 1.0))
    assert not hang_stands(NOTES, case(0.5, 1.0))
    for kind in ("recovered", "suspect", "finished"):
        assert not hang_stands(replace(NOTES, newest=replace(HANG, verdict=kind)), case(70.0, 1.0))
    assert not hang_stands(replace(NOTES, newest=None), case(70.0, 1.0))


def test_a_hang_whose_culprits_have_progressed_since_is_over_before_that_is_told() -> None:
    """The watcher waits before it tells that; the looks of the visit alone take two seconds."""
    moved = replace(NOTE, silent_for_s=0.5, idle_for_s=0.5)
    assert not hang_stands(replace(NOTES, ranks=(moved,)), case(2.1, 0.3))


def test_a_culprit_that_is_gone_does_not_end_the_hang() -> None:
    assert hang_stands(replace(NOTES, ranks=()), case(70.0, 1.0))


def test_a_hang_that_was_told_by_a_watcher_that_stopped_since_is_not_known_to_stand() -> None:
    assert not hang_stands(NOTES, case(700.0, 600.0))
