"""Each alarm is told once and its end once; what ranks do as the job shuts down is no news."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, gone, job, rank
from msgspec.structs import replace
from report.constructed import verdict as constructed

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.verdict import EvidenceItem, RankState, Verdict
from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.observe.watched_rank import WatchedRank
from lightning_hangcheck.text.shown import NANOSECONDS
from lightning_hangcheck.watch.incident import Incident, Shutdown

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

NOW = "2026-01-01T00:00:10.000Z"


def verdict(kind: str, *culprits: int, cause: str = "rank_stalled", **fields: Any) -> Verdict:
    return constructed(kind, culprits=culprits, cause=cause, **fields)


ALONE = verdict("hang", 0)
JOINED = replace(ALONE, ranks=(RankState(rank=1), RankState(rank=2)), victims=(1, 2))
UNKNOWN, KNOWN = (verdict("hang", 1, cause=cause) for cause in ("unknown", "logger_init"))
THREE = verdict("suspect", 0, 1, 2)
TAKEN: dict[str, tuple[list[Verdict], list[str | None]]] = {
    "a suspicion is a line and a hang a report, each once": (
        [verdict(kind, 1) for kind in ("suspect", "suspect", "hang", "hang")],
        ["line", None, "report", None],
    ),
    "ranks that are suspected already are no second suspicion": (
        [THREE, verdict("suspect", 2), THREE, verdict("suspect", 2, cause="network_wait")],
        ["line", None, None, "line"],
    ),
    "a suspicion of those that the others now wait for is another one": (
        [THREE, verdict("suspect", 2, victims=(0, 1))],
        ["line", "line"],
    ),
    "one that now is on more nodes is saved once without a word": (
        [ALONE, JOINED, JOINED, ALONE],
        ["report", "silent", None, None],
    ),
    "a hang is not softened to a suspicion": (
        [verdict("hang", 1), verdict("suspect", 1)],
        ["report", None],
    ),
    "a hang that is understood better is saved without shouting again": (
        [UNKNOWN, KNOWN],
        ["report", "silent"],
    ),
    # as where the other nodes are heard only after this one has judged its own ranks
    "who holds a hang up is told once where nobody could be named before": (
        [verdict("hang", *culprits) for culprits in ((), (1,), (1,), (), (1,))],
        ["report", "named", None, "silent", "silent"],
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_each_verdict_is_told_as_it_is_news(case: str) -> None:
    alarm, (taken, told) = Incident(), TAKEN[case]
    assert [alarm.take(one) for one in taken] == told
    assert alarm.proven == (taken[0].verdict == "hang" or taken[-1].verdict == "hang")


@pytest.mark.parametrize(
    ("kind", "words"), [("suspect", "was suspected for"), ("hang", "was called a hang for")]
)
def test_the_end_of_an_alarm_is_told_once_with_how_long_it_stood(kind: str, words: str) -> None:
    """From the first suspicion on, however much longer the silence was; nothing is lost then."""
    found = EvidenceItem("stack", 1, "is in load"), EvidenceItem("lost", None, "2 steps")
    alarm = Incident()
    alarm.take(replace(verdict("suspect", 1), stalled_for_s=12.0))
    last = replace(verdict(kind, 1, cause="unknown"), stalled_for_s=30.0, evidence=found)
    alarm.take(last)
    ended = alarm.ended(NOW, 52.0)
    assert (ended.verdict, ended.culprits, ended.stalled_for_s) == ("recovered", (1,), 52.0)
    assert ended.summary.startswith(f"moves again, {words} 40 s (silent for 52 s); what was seen:")
    assert ended.evidence == found[:1]
    assert alarm.ended(NOW, 52.0) is None
    assert alarm.take(last) in ("line", "report"), "a second one counts too"


MINUTE_NS = 60 * NANOSECONDS


def reminded_at(alarm: Incident, first: int, last: int) -> list[int]:
    """The minutes at which a reminder is due, asked every minute."""
    return [m for m in range(first, last) if alarm.reminder(m * MINUTE_NS) is not None]


def test_each_reminder_comes_after_twice_the_time_and_a_late_one_is_not_repeated() -> None:
    alarm = Incident()
    alarm.take(verdict("suspect", 1))
    assert reminded_at(alarm, 10, 45) == [12, 14, 18, 26, 42]
    alarm = Incident()
    alarm.take(verdict("hang", 1))
    assert alarm.reminder(0) is None
    assert alarm.reminder(9 * MINUTE_NS) == 540.0
    assert reminded_at(alarm, 10, 20) == [16]


RAISED_NS = 50
BLAMED = job(rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))


def watched(number: int, advanced_ns: int, *, gone: bool = False) -> dict[int, WatchedRank]:
    one = WatchedRank(FoundRank(rank=number, pid=100 + number), advanced_ns)
    if gone:
        one.note_exit(0, "", 1)
    return {number: one}


@pytest.mark.parametrize("at_ns", [40, 60])
@pytest.mark.parametrize(
    ("here", "elsewhere", "asked"),
    [
        (lambda at_ns: watched(1, at_ns), lambda _: None, True),
        (lambda _: watched(0, 0), lambda at_ns: {1: at_ns}, True),
        (lambda at_ns: watched(0, at_ns), lambda _: {}, True),
        (lambda at_ns: {**watched(0, at_ns), **watched(1, at_ns, gone=True)}, lambda _: {}, False),
        (lambda at_ns: watched(0, at_ns), lambda _: None, False),
    ],
    ids=["here", "on another node", "its node is silent: who waited", "it is gone", "one node"],
)
def test_whose_progress_ends_an_alarm(
    here: Any, elsewhere: Any, *, asked: bool, at_ns: int
) -> None:
    """That of its culprits; others move on their way out, too. It waits a little after that."""
    alarm = Incident()
    alarm.verdict = judge(BLAMED)
    alarm.raised(replace(BLAMED, taken_ns=RAISED_NS))
    assert not alarm.has_passed(here(at_ns), elsewhere(at_ns), 100)
    assert (alarm.advances_since_ns == 100) == (asked and at_ns > RAISED_NS)


HUNG = (rank(0, IN_ALL_REDUCE), rank(1, IN_LOAD))
INTERRUPTED = "KeyboardInterrupt in main (train.py:3)"


def at(seconds: float) -> int:
    return int(seconds * NANOSECONDS)


def interrupted(number: int) -> RankView:
    beat = Beat(pid=1, ending="raised", ended_ns=5, last_beat_ns=5, last_words=INTERRUPTED)
    return rank(number, IN_LOAD, beat=beat)


def stepping(step: int) -> RankView:
    return rank(0, IN_LOAD, beat=Beat(pid=1, step=step))


def test_a_job_that_steps_on_a_minute_later_was_asked_something_else() -> None:
    shutdown = Shutdown()
    shutdown.ask("SIGHUP", (stepping(5),), "", at(0))
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(59)), "it finishes its epoch"
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(61))
    assert shutdown.begun((stepping(9),), proven=False, now_ns=at(300)), "it saves for long"
    assert not shutdown.begun((stepping(10),), proven=False, now_ns=at(301))
    assert shutdown.asked is None


def test_one_rank_that_leaves_a_proven_hang_tells_unless_it_was_gone_before() -> None:
    shutdown = Shutdown()
    shutdown.hang_proven(HUNG)
    assert shutdown.begun((gone(0, 1), HUNG[1]), proven=True, now_ns=at(1))
    assert shutdown.begun((interrupted(0), HUNG[1]), proven=True, now_ns=at(1))
    assert shutdown.end_round() is None, "a launcher starts it anew"
    assert not shutdown.begun(HUNG, proven=True, now_ns=at(2))
    shutdown.hang_proven((gone(0, -15), HUNG[1]))
    assert not shutdown.begun((gone(0, -15), HUNG[1]), proven=True, now_ns=at(3))


@pytest.mark.parametrize(
    ("told_s", "by"), [(1.1, "SIGINT from the terminal"), (30, "KeyboardInterrupt in rank 0")]
)
def test_one_rank_that_answers_a_signal_speaks_for_those_that_cannot(
    told_s: float, by: str
) -> None:
    """Ctrl-C comes to a rank that sleeps, and to one that waits; a launcher may tell more of it."""
    shutdown = Shutdown()
    ranks = (interrupted(0), HUNG[1])
    assert shutdown.begun(ranks, proven=False, suspected="rank 0 is silent", now_ns=at(1))
    assert shutdown.begun(HUNG, proven=False, now_ns=at(1)), "what was asked for stays so"
    shutdown.ask("SIGINT from the terminal", HUNG, "", at(told_s))
    assert (shutdown.asked.by, shutdown.asked.suspected) == (by, "rank 0 is silent")


def test_a_rank_that_a_signal_or_its_launcher_ended_speaks_for_no_other() -> None:
    """Others may need it. The launcher ends the others of a failed rank."""
    assert not Shutdown().begun((gone(0, -15), HUNG[1]), proven=False, now_ns=at(1))
    assert Shutdown().begun((gone(0, -15), interrupted(1)), proven=False, now_ns=at(1))
    ranks = (gone(0, 1, words="ValueError: bad sample"), interrupted(1))
    assert not Shutdown().begun(ranks, proven=False, now_ns=at(1))
