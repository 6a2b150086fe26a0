"""Prints scores as one table, in Markdown."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangbench.scoring import Score

COLUMNS = ("case", "told", "named", "alarm", "culprit", "cause", "phase", "line")


def render(scores: Sequence[Score]) -> str:
    """Return the hanging cases, the healthy ones, and the totals."""
    hanging = [one for one in scores if not one.healthy]
    healthy = [one for one in scores if one.healthy]
    parts = []
    if hanging:
        parts.append(table(COLUMNS, [_row(one) for one in hanging]))
    if healthy:
        rows = [
            (one.name, " ".join(one.told), str(one.suspicions), _mark(not one.false_alarm))
            for one in healthy
        ]
        parts.append(table(("healthy case", "told", "suspicions", "no alarm"), rows))
    return "\n\n".join([*parts, _totals(hanging, healthy)])


def _row(score: Score) -> tuple[str, ...]:
    return (
        score.name,
        (score.told or ["nothing"])[-1] + ("" if score.detected else " (wrong)"),
        _seconds(score.named_after_s),
        _seconds(score.alarm_after_s),
        *(_mark(one) for one in (score.culprits, score.cause, score.phase, score.line)),
    )


def _totals(hanging: Sequence[Score], healthy: Sequence[Score]) -> str:
    lines = []
    for name in ("detected", "culprits", "cause", "phase", "line"):
        asked = [getattr(one, name) for one in hanging if getattr(one, name) is not None]
        if asked:
            lines.append(f"{name}: {sum(asked)} of {len(asked)}")
    named = [one.named_after_s for one in hanging if one.named_after_s is not None]
    if named:
        lines.append(f"culprit named after: median {median(named):.1f} s, worst {max(named):.1f} s")
    lines.append(f"all right: {sum(one.right for one in hanging)} of {len(hanging)} hanging cases")
    if healthy:
        lines += [
            f"false alarms: {sum(one.false_alarm for one in healthy)} of {len(healthy)} healthy",
            f"suspicions in healthy runs: {sum(one.suspicions for one in healthy)}",
        ]
    return "\n".join(lines)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with aligned columns, in Markdown."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (header, rule, *rows)
    )


def _mark(right: bool | None) -> str:
    return {True: "right", False: "WRONG", None: ""}[right]


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f} s"
