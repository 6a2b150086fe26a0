"""Prints scores as one table, in Markdown."""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING

from corpus.certainty import most_per_hour, wilson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hangbench.scoring import Score

COLUMNS = ("case", "told", "named", "alarm", "culprit", "cause", "phase", "line", "said wrongly")


def render(scores: Sequence[Score]) -> str:
    """Return the hanging cases, the healthy ones, and the totals."""
    hanging = [one for one in scores if not one.healthy]
    healthy = [one for one in scores if one.healthy]
    parts = []
    if hanging:
        parts.append(table(COLUMNS, [_row(one) for one in hanging]))
    if healthy:
        rows = [
            (
                *(one.name, " ".join(one.told), str(one.suspicions), _mark(not one.false_alarm)),
                _mark(one.ended_well),
            )
            for one in healthy
        ]
        header = ("healthy case", "told", "suspicions", "no alarm", "ended well")
        parts.append(table(header, rows))
    return "\n\n".join([*parts, *_confusion(hanging), _totals(hanging, healthy)])


def _row(score: Score) -> tuple[str, ...]:
    return (
        score.name,
        (score.told or ["nothing"])[-1] + ("" if score.detected else " (wrong)"),
        _seconds(score.named_after_s),
        _seconds(score.alarm_after_s),
        *(_mark(one) for one in (score.culprits, score.cause, score.phase, score.line)),
        _said_wrongly(score),
    )


def _said_wrongly(score: Score) -> str:
    """Verdicts about others than the culprits, and alarms before the onset."""
    told = ((score.wrong_suspects, "wrong suspects"), (score.early_alarms, "early alarms"))
    return ", ".join(f"{count} {what}" for count, what in told if count)


def _confusion(hanging: Sequence[Score]) -> list[str]:
    """The causes that were told wrongly, and for what; none if all were right."""
    pairs = Counter((one.true_cause, one.said_cause or "none") for one in hanging if not one.cause)
    asked = Counter(one.true_cause for one in hanging)
    rows = [
        (true, str(asked[true]), said, str(count)) for (true, said), count in sorted(pairs.items())
    ]
    return [table(("cause", "cases", "told instead", "times"), rows)] if rows else []


def _totals(hanging: Sequence[Score], healthy: Sequence[Score]) -> str:
    lines = []
    for name in ("detected", "culprits", "cause", "phase", "line"):
        asked = [getattr(one, name) for one in hanging if getattr(one, name) is not None]
        if asked:
            low, high = wilson(sum(asked), len(asked))
            share = f"{100 * low:.0f} to {100 * high:.0f} % with 95 % confidence"
            lines.append(f"{name}: {sum(asked)} of {len(asked)} ({share})")
    named = [one.named_after_s for one in hanging if one.named_after_s is not None]
    if named:
        told = f"median {median(named):.1f} s, 95 % within {_within(named):.1f} s"
        lines.append(f"culprit named after: {told}, worst {max(named):.1f} s")
    lines.append(f"wrong suspects: {sum(one.wrong_suspects for one in hanging)}")
    lines.append(f"alarms before the onset: {sum(one.early_alarms for one in hanging)}")
    lines.append(f"all right: {sum(one.right for one in hanging)} of {len(hanging)} hanging cases")
    return "\n".join([*lines, *_totals_of_healthy(healthy)])


def _totals_of_healthy(healthy: Sequence[Score]) -> list[str]:
    if not healthy:
        return []
    alarms, suspicions = (
        sum(one.false_alarm for one in healthy),
        sum(one.suspicions for one in healthy),
    )
    lines = [
        f"false alarms: {alarms} of {len(healthy)} healthy",
        f"suspicions in healthy runs: {suspicions}",
        f"ended well by themselves: {sum(bool(one.ended_well) for one in healthy)}",
    ]
    hours = sum(one.watched_s for one in healthy) / 3600
    if hours:
        bound = 1000 * most_per_hour(alarms, hours)
        lines.append(
            f"healthy hours watched: {hours:.2f}, so fewer than {bound:.0f} false alarms in 1,000 "
            f"hours with 95 % confidence; {suspicions / hours:.2f} suspicions an hour"
        )
    return lines


def _within(times: Sequence[float]) -> float:
    """The time within which 95 % of all came."""
    return sorted(times)[math.ceil(0.95 * len(times)) - 1]


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
