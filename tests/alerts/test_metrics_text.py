"""The text that Prometheus reads, by Prometheus' own parser."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lightning_hangcheck.alerts.metrics_text import METRICS, RunReading, render
from lightning_hangcheck.model.slugs import VerdictKind

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

READING = RunReading(
    run_id="run",
    standing="hang",
    stall_s=61.25,
    progress={10: 1_790_000_002.5, 2: 1_790_000_001.0},
    written=1_790_000_063.0,
    exit_code=-9,
)


def families(reading: RunReading) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(render(reading).decode())}


def test_every_metric_has_help_and_type() -> None:
    found = families(READING)
    assert set(found) == set(METRICS)
    assert {(one.type, bool(one.documentation)) for one in found.values()} == {("gauge", True)}


def test_the_values_and_their_labels() -> None:
    found = {name: family.samples for name, family in families(READING).items()}
    progress = found["hangcheck_last_progress_timestamp_seconds"]
    assert [(one.labels, one.value) for one in progress] == [
        ({"run": "run", "rank": "2"}, 1_790_000_001.0),
        ({"run": "run", "rank": "10"}, 1_790_000_002.5),
    ]
    assert found["hangcheck_stall_seconds"][0].value == 61.25
    assert found["hangcheck_watching"][0].value == 1
    assert found["hangcheck_exit_code"][0].value == -9


@pytest.mark.parametrize("kind", [None, *get_args(VerdictKind)])
def test_the_state_is_that_of_the_contract(kind: VerdictKind | None) -> None:
    (state,) = families(RunReading(run_id="r", standing=kind, written=1.0))[
        "hangcheck_state"
    ].samples
    assert state.value == {"suspect": 1, "hang": 2, "dead": 3}.get(kind or "", 0)


def test_before_its_end_a_run_has_no_exit_code() -> None:
    assert "hangcheck_exit_code" not in families(RunReading(run_id="r", written=1.0))


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\\n", "über", "{}=,"])
def test_a_run_may_be_called_anything(name: str) -> None:
    (state,) = families(RunReading(run_id=name, written=1.0))["hangcheck_state"].samples
    assert state.labels == {"run": name}
