"""Nodes of which nothing is heard: those that fell silent, and those that never came. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.nodes.exchange import SILENT_AFTER_S, Heard
from lightning_hangcheck.reading.wording import name_ranks
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.case import RankView


def silent_s(heard: Heard, now_ns: int) -> float:
    """Seconds since a node was heard; 0 where they are few, or its job has ended."""
    seconds = (now_ns - heard.heard_ns) / NANOSECONDS
    return seconds if seconds >= SILENT_AFTER_S and not heard.state.ended else 0.0


def silent_node(heard: Heard, now_ns: int) -> Gap:
    """Say of a node that it fell silent, and what was known of it last."""
    ranks = [view.rank for view in heard.views]
    which = f"node {heard.state.node}" + (f" ({name_ranks(ranks)})" if ranks else "")
    return Gap(
        which,
        None,
        f"has not been heard for {silent_s(heard, now_ns):.0f} s: its host is down, the network "
        f"is cut, or its sidecar is dead{_last_known(heard.views)}",
        "other_nodes",
    )


def absent_nodes(absent: Iterable[int], waited_s: float, where: str) -> Gap:
    """Say of nodes that nothing was ever heard of them.

    Args:
        absent: Their numbers.
        waited_s: Seconds for which somebody has listened.
        where: The place where nodes meet, in words.
    """
    numbers = format_ranks(absent)
    return Gap(
        f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}",
        None,
        f"nothing was heard from there for {waited_s:.0f} s: it has not come, no hangcheck run "
        f"watches there, or it does not reach {where}",
        "other_nodes",
    )


def _last_known(views: Iterable[RankView]) -> str:
    """The furthest that its ranks were known to be."""
    marks = [view.beat.checkpoint for view in views if view.beat and view.beat.checkpoint]
    steps = [view.beat.step for view in views if view.beat and view.beat.step is not None]
    mark = max(marks, key=lambda one: one.number, default=None)
    known = [f"checkpoint {mark.number} ({mark.name})"] if mark is not None else []
    known += [f"step {max(steps)}"] if steps else []
    return f"; last known there: {', '.join(known)}" if known else ""
