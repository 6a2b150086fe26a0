"""The example of alert rules is made of metrics that exist, and of what Prometheus knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lightning_hangcheck.alerts import METRICS

ROOT = Path(__file__).parent.parent.parent
RULES = ROOT / "docs" / "examples" / "hangcheck-alerts.yml"
NAMES = set(METRICS)


def test_the_rules_name_only_metrics_that_are_written() -> None:
    yaml = pytest.importorskip("yaml")
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    rules = group["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) == 5
    for rule in rules:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        named = set(re.findall(r"hangcheck_\w+", rule["expr"]))
        assert named
        assert named <= NAMES, rule["alert"]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= {"run", "rank", "instance"}


def test_every_metric_is_on_the_page_and_no_other() -> None:
    page = (ROOT / "docs" / "alerts.md").read_text()
    assert set(re.findall(r"^\| `(hangcheck_\w+)", page, re.MULTILINE)) == NAMES
