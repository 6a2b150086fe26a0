"""Prints the answers of several tools side by side, in Markdown."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from corpus.table import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corpus.peers.comparing import Beside

ASKED = ("detected", "culprits", "cause", "line")


def render_side_by_side(answers: Sequence[Beside]) -> str:
    """Return the totals of each tool, and each case."""
    tools = list(dict.fromkeys(one.who for one in answers))
    return "\n\n".join([_totals(tools, answers), _cases(tools, answers)])


def _totals(tools: Sequence[str], answers: Sequence[Beside]) -> str:
    own = [[one for one in answers if one.who == tool] for tool in tools]
    rows = [(name, *(_share(some, name) for some in own)) for name in ASKED]
    rows.insert(1, ("seconds to that, median", *(_median(some) for some in own)))
    rows.append(("false alarms", *(_false_alarms(some) for some in own)))
    return table(("", *tools), rows)


def _share(answers: Sequence[Beside], name: str) -> str:
    asked = [getattr(one, name) for one in answers if getattr(one, name) is not None]
    return f"{sum(asked)} of {len(asked)}"


def _median(answers: Sequence[Beside]) -> str:
    seconds = [one.after_s for one in answers if one.detected and one.after_s is not None]
    return f"{median(seconds):.1f} s" if seconds else ""


def _false_alarms(answers: Sequence[Beside]) -> str:
    healthy = [one for one in answers if one.healthy]
    return f"{sum(one.false_alarm for one in healthy)} of {len(healthy)}"


def _cases(tools: Sequence[str], answers: Sequence[Beside]) -> str:
    names = sorted(dict.fromkeys(one.name for one in answers), key=_healthy_last)
    found = {(one.who, one.name): one for one in answers}
    rows = [(name, *(_cell(found.get((tool, name))) for tool in tools)) for name in names]
    return table(("case", *tools), rows)


def _healthy_last(name: str) -> tuple[bool, str]:
    return name.startswith("healthy_"), name


def _cell(answer: Beside | None) -> str:
    if answer is None:
        return ""
    if answer.healthy:
        return "FALSE ALARM" if answer.false_alarm else "no alarm"
    if not answer.detected:
        return "nothing"
    after = "told" if answer.after_s is None else f"{answer.after_s:.1f} s"
    right = [name for name in ASKED[1:] if getattr(answer, name)]
    return f"{after}: {', '.join(right) or 'neither who nor why'}"
