"""`--otel`: one point of a gauge for a hang, to where the environment says."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from alerts.receiver import receiving
from alerts.test_hang_command import news

from lightning_hangcheck.alerts.asked_for import AlertsAskedFor
from lightning_hangcheck.alerts.telemetry import metrics_of, send
from lightning_hangcheck.cli.alert_options import made_ready
from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="the extra `otel` is not installed"
)
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


def test_a_hang_is_one_point_of_a_gauge(tmp_path: Path) -> None:
    data = metrics_of(news(tmp_path / "run"))
    assert data is not None
    (resource,) = data.resource_metrics
    (metric,) = resource.scope_metrics[0].metrics
    (point,) = metric.data.data_points
    assert (metric.name, point.value) == ("hangcheck.state", 2)
    assert dict(point.attributes) == {"run": "run", "cause": "rank_stalled", "verdict": "hang"}
    assert resource.resource.attributes["service.name"] == "hangcheck"


def test_it_comes_to_the_collector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving() as server:
        monkeypatch.setenv(ENDPOINT, f"http://{server.address}")
        assert send(news(tmp_path / "run")) == ""
    assert len(server.bodies) == 1


def test_a_collector_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with receiving() as gone:
        pass
    monkeypatch.setenv(ENDPOINT, f"http://me:xleakx@{gone.address}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    assert send(news(tmp_path / "run")).startswith("--otel: the collector ")
    said = capfd.readouterr()
    assert "xleakx" not in said.out + said.err


def test_without_an_endpoint_or_the_package_the_start_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in (ENDPOINT, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadUsage, match="OTEL_EXPORTER_OTLP_ENDPOINT is not set"):
        made_ready(AlertsAskedFor(otel=True))
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.metrics", None)
    with pytest.raises(BadUsage, match=r"lightning-hangcheck\[otel\]"):
        made_ready(AlertsAskedFor(otel=True))
