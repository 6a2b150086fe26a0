"""The judgement, by all that was really seen of the corpus: what was right must stay right."""

from __future__ import annotations

import pytest
from hangbench.recorded import Recording, recordings, right_in
from hangbench.scoring import ALARMS

from lightning_hangcheck.diagnosis import judge

ANSWERS = ("culprits", "cause", "phase", "line")
HANGING = tuple(one for one in recordings() if not one.truth.healthy)
HEALTHY = tuple(one for one in recordings() if one.truth.healthy)


@pytest.fixture(scope="module")
def answers() -> list[tuple[Recording, dict[str, bool]]]:
    return [(one, right_in(one, judge(one.case))) for one in HANGING]


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_recorded_hang_is_explained_rightly(
    answers: list[tuple[Recording, dict[str, bool]]], answer: str
) -> None:
    wrong = [f"{one.program} ({one.kind})" for one, right in answers if not right.get(answer, True)]
    assert wrong == []


def test_every_recorded_hang_is_called_what_it_was_called_then() -> None:
    told = {f"{one.program} ({one.kind})": judge(one.case).verdict for one in HANGING}
    assert {name: kind for name, kind in told.items() if f"({kind})" not in name} == {}


def test_no_healthy_program_is_called_a_hang() -> None:
    alarms = {one.program: judge(one.case).summary for one in HEALTHY if _alarms(one)}
    assert alarms == {}


def test_the_recordings_are_those_of_the_corpus() -> None:
    assert len({one.program for one in HANGING}) > 140
    assert len({one.program for one in HEALTHY}) > 85


def _alarms(recording: Recording) -> bool:
    return judge(recording.case).verdict in ALARMS
