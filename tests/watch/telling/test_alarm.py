"""Each alarm is told once, its end once, and the next one again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lightning_hangcheck.model.verdict import EvidenceItem, RankState, Verdict
from lightning_hangcheck.watch.telling.alarm import Alarm

NOW = "2026-01-01T00:00:10.000Z"


def verdict(
    kind: str, *culprits: int, cause: str = "rank_stalled", victims: tuple[int, ...] = ()
) -> Verdict:
    return Verdict(
        verdict=kind,  # type: ignore[arg-type]
        run_id="run",
        command="train",
        started_at="2026-01-01T00:00:00.000Z",
        detected_at=NOW,
        world_size=2,
        culprits=culprits,
        victims=victims,
        cause=cause,  # type: ignore[arg-type]
    )


def test_suspicion_is_a_line_and_a_hang_a_report_each_once() -> None:
    alarm = Alarm()
    told = [alarm.take(verdict(kind, 1)) for kind in ("suspect", "suspect", "hang", "hang")]
    assert told == ["line", None, "report", None]


def test_ranks_that_are_suspected_already_are_no_second_suspicion() -> None:
    alarm = Alarm()
    alarm.take(verdict("suspect", 0, 1, 2))
    assert alarm.take(verdict("suspect", 2)) is None
    assert alarm.take(verdict("suspect", 0, 1, 2)) is None
    assert alarm.take(verdict("suspect", 2, cause="network_wait")) == "line"


def test_a_suspicion_of_those_that_the_others_now_wait_for_is_another_one() -> None:
    alarm = Alarm()
    alarm.take(verdict("suspect", 0, 1, 2))
    assert alarm.take(verdict("suspect", 2, victims=(0, 1))) == "line"


def test_a_verdict_that_now_is_on_more_nodes_is_saved_once_without_a_word() -> None:
    """One that was given alone, then joined by whoever judges for all."""
    alarm, alone = Alarm(), verdict("hang", 0)
    ranks = (RankState(rank=1), RankState(rank=2))
    joined = replace(alone, ranks=ranks, victims=(1, 2))
    told = [alarm.take(one) for one in (alone, joined, joined, alone)]
    assert told == ["report", "silent", None, None]
    assert alarm.standing == joined


def test_what_a_closer_look_adds_is_saved_without_a_word() -> None:
    alarm = Alarm()
    assert alarm.take(verdict("hang", 1), closer=True) == "report"
    assert alarm.take(verdict("hang", 1), closer=True) == "silent"
    assert alarm.take(verdict("suspect", 1), closer=True) is None


@pytest.mark.parametrize("kind", ["healthy", "finished"])
def test_good_news_is_no_alarm(kind: str) -> None:
    assert Alarm().take(verdict(kind)) is None


def test_a_hang_is_not_softened_to_a_suspicion() -> None:
    alarm = Alarm()
    alarm.take(verdict("hang", 1))
    assert alarm.take(verdict("suspect", 1)) is None
    assert alarm.proven


def test_a_hang_that_is_understood_better_is_saved_without_shouting_again() -> None:
    alarm = Alarm()
    alarm.take(verdict("hang", 1, cause="unknown"))
    assert alarm.take(verdict("hang", 1, cause="logger_init")) == "silent"


def test_who_holds_a_hang_up_is_told_once_where_nobody_could_be_named_before() -> None:
    """As where the other nodes are heard only after this one has judged its own ranks."""
    alarm = Alarm()
    told = [alarm.take(verdict("hang", *culprits)) for culprits in ((), (1,), (1,), (), (1,))]
    assert told == ["report", "named", None, "silent", "silent"]


def test_the_end_of_an_alarm_is_told_once() -> None:
    alarm = Alarm()
    alarm.take(verdict("hang", 1))
    ended = alarm.recovered(NOW, 42.0)
    assert ended is not None
    assert (ended.verdict, ended.culprits, ended.stalled_for_s) == ("recovered", (1,), 42.0)
    assert alarm.recovered(NOW, 42.0) is None


@pytest.mark.parametrize(
    ("kind", "words"), [("suspect", "was suspected for"), ("hang", "was called a hang for")]
)
def test_its_end_says_for_how_long_it_stood(kind: str, words: str) -> None:
    """From the first suspicion on, however much longer the silence was."""
    alarm = Alarm()
    alarm.take(replace(verdict("suspect", 1), stalled_for_s=12.0))
    alarm.take(replace(verdict(kind, 1, cause="unknown"), stalled_for_s=30.0))
    ended = alarm.recovered(NOW, 52.0)
    assert ended is not None
    assert ended.summary.startswith(f"moves again, {words} 40 s (silent for 52 s); what was seen:")


def test_a_job_that_advances_again_has_lost_nothing() -> None:
    found = EvidenceItem("stack", 1, "stands in load"), EvidenceItem("lost", None, "2 steps")
    alarm = Alarm()
    alarm.take(replace(verdict("hang", 1), evidence=found))
    ended = alarm.recovered(NOW, 42.0)
    assert ended is not None
    assert ended.evidence == found[:1]


def test_a_second_hang_of_the_same_rank_counts_too() -> None:
    alarm = Alarm()
    alarm.take(verdict("hang", 1))
    alarm.recovered(NOW, 42.0)
    assert alarm.take(verdict("hang", 1)) == "report"
