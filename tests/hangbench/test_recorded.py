"""The judgement, by all that was really seen of the corpus: what was right must stay right."""

from __future__ import annotations

import pytest
from hangbench.recorded import Recording, recordings, right_in
from hangbench.scoring import ALARMS

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.verdict import Verdict

Judged = list[tuple[Recording, Verdict]]


@pytest.fixture(scope="module")
def judged() -> Judged:
    return [(one, judge(one.case)) for one in recordings()]


@pytest.fixture(scope="module")
def hanging(judged: Judged) -> Judged:
    return [pair for pair in judged if not pair[0].truth.healthy]


@pytest.fixture(scope="module")
def healthy(judged: Judged) -> Judged:
    return [pair for pair in judged if pair[0].truth.healthy]


@pytest.fixture(scope="module")
def answers(hanging: Judged) -> list[tuple[str, dict[str, bool]]]:
    return [(f"{one.program} ({one.kind})", right_in(one, verdict)) for one, verdict in hanging]


@pytest.mark.parametrize("answer", ["culprits", "cause", "phase", "line"])
def test_every_recorded_hang_is_explained_rightly(
    answers: list[tuple[str, dict[str, bool]]], answer: str
) -> None:
    assert [name for name, right in answers if not right.get(answer, True)] == []


def test_every_recorded_hang_is_called_what_it_was_called_then(hanging: Judged) -> None:
    """But for one: its worker and its rank wait for each other, which is proven at once by now."""
    other = [
        (one.program, verdict.verdict) for one, verdict in hanging if verdict.verdict != one.kind
    ]
    assert other == [("worker_reads_from_pipe", "hang")]


def test_no_healthy_program_is_called_a_hang(healthy: Judged) -> None:
    assert [one.program for one, verdict in healthy if verdict.verdict in ALARMS] == []


def test_the_recordings_are_those_of_the_corpus(hanging: Judged, healthy: Judged) -> None:
    assert len({one.program for one, _ in hanging}) > 140
    assert len({one.program for one, _ in healthy}) > 85
