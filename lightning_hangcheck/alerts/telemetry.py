"""`--otel`: a hang as a metric of OpenTelemetry, to where the environment says (OTLP over HTTP)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.alerts.metrics_text import STATES
from lightning_hangcheck.alerts.packages import hush
from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.metrics.export import MetricsData

    from lightning_hangcheck.alerts.asked_for import HangNews

PACKAGES = ("opentelemetry.sdk.metrics", "opentelemetry.exporter.otlp.proto.http")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
TELEMETRY_LIMIT_S = 20.0
"""The exporter's own limit is 10 s (OTEL_EXPORTER_OTLP_TIMEOUT)."""
SERVICE = "hangcheck"


def refuse_unconfigured(environment: Mapping[str, str]) -> None:
    """Refuse at the start of a run what would go nowhere at night.

    Raises:
        BadUsage: The environment names no endpoint.
    """
    if not any(environment.get(name) for name in ENDPOINTS):
        raise BadUsage(
            f"--otel: {ENDPOINTS[1]} is not set",
            f"name your collector: {ENDPOINTS[1]}=http://127.0.0.1:4318",
        )


def metrics_of(news: HangNews) -> MetricsData | None:
    """Write a hang as the gauge ``hangcheck.state``, with the values that Prometheus gets."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.resources import Resource

    named = "OTEL_SERVICE_NAME" in os.environ
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        metric_readers=[reader],
        resource=Resource.create({} if named else {"service.name": SERVICE}),
        shutdown_on_exit=False,
    )
    gauge = provider.get_meter("lightning_hangcheck").create_gauge(
        "hangcheck.state", description="State of the job: 2 hang, 3 dead"
    )
    attributes = {"run": news.run_id, "cause": news.cause, "verdict": news.kind}
    gauge.set(STATES[news.kind], attributes)
    return reader.get_metrics_data()


def send(news: HangNews) -> str:
    """Send it; what went wrong, in one sentence, empty if nothing did."""
    hush("opentelemetry", "urllib3", "requests")
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = metrics_of(news)
        sent = data is not None and OTLPMetricExporter().export(data) is MetricExportResult.SUCCESS
    except Exception as error:  # noqa: BLE001 - whatever the exporter does wrong
        return f"--otel: the collector was not reached ({type(error).__name__})"
    return "" if sent else "--otel: the collector did not take the hang"
