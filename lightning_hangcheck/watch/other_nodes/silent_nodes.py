"""Nodes of which nothing is heard: those that fell silent, and those that never came. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lightning_hangcheck.model.case import SilentNode
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.nodes.heard import Heard, ranks_of
from lightning_hangcheck.nodes.judging.succession import SILENT_AFTER_S
from lightning_hangcheck.reading.node_silence import which_node, why_silent
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightning_hangcheck.model.case import RankView, Reach
    from lightning_hangcheck.model.evidence import AddressReach

ASKED_AFTER_S = SILENT_AFTER_S / 2
"""Silence after which connections are looked at, so that something is known once it is told."""
ANSWERED_LATER_S = 5.0
"""By so much something must have come later than a node's last word: both travel, and are told."""
UNANSWERED_S = 3.0
"""A lost packet is repeated within a second; one of a thousand is, several times, within three."""
GOES_ON_S = 5.0


def silent_s(heard: Heard, now_ns: int, after_s: float = SILENT_AFTER_S) -> float:
    """Seconds since a node was heard; 0 where they are few, or its job has ended."""
    seconds = (now_ns - heard.heard_ns) / NANOSECONDS
    return seconds if seconds >= after_s and not heard.state.ended else 0.0


def addresses_to_ask(
    heard: Mapping[int, Heard], own: Iterable[str], now_ns: int
) -> dict[int, tuple[str, ...]]:
    """Return the addresses of nodes that may have fallen silent, by which they alone are known.

    Args:
        heard: All nodes of which something was heard.
        own: Addresses of this node.
        now_ns: Present time.
    """
    known = Counter(own)
    for one in heard.values():
        known.update(set(one.state.addresses))
    return {
        node: tuple(address for address in one.state.addresses if known[address] == 1)
        for node, one in heard.items()
        if silent_s(one, now_ns, ASKED_AFTER_S)
    }


def silent_node(
    heard: Heard, now_ns: int, reaches: Iterable[AddressReach], others: Iterable[RankView]
) -> SilentNode:
    """Say of a node that it fell silent, and what was known of it last.

    Args:
        heard: What it told last.
        now_ns: Present time.
        reaches: What connections of other nodes' ranks to its addresses show.
        others: Ranks of the nodes that are heard.
    """
    seconds = silent_s(heard, now_ns)
    there = list(reaches)
    unanswered_s = max((one.unanswered_s for one in there if one.unanswered), default=0.0)
    return SilentNode(
        number=heard.state.node,
        ranks=format_ranks(ranks_of(heard)),
        silent_s=seconds,
        reach=_reach(seconds, there, unanswered_s, list(others)),
        unanswered_s=unanswered_s,
        last_known=_last_known(heard),
    )


def _reach(
    seconds: float, reaches: list[AddressReach], unanswered_s: float, others: list[RankView]
) -> Reach:
    if any(one.heard_s < seconds - ANSWERED_LATER_S for one in reaches):
        return "answers"
    if unanswered_s >= UNANSWERED_S:
        return "unanswered"
    goes_on = bool(others) and all(view.silent_for_s < GOES_ON_S for view in others)
    return "goes_on" if goes_on else "unknown"


def silence_gap(node: SilentNode) -> Gap:
    """Write that a node fell silent as what could not be seen."""
    known = f"; last known there: {node.last_known}" if node.last_known else ""
    return Gap(
        which_node(node),
        None,
        f"has not been heard for {node.silent_s:.0f} s: {why_silent(node)}{known}",
        "other_nodes",
    )


def absent_nodes(absent: Iterable[int], waited_s: float, where: str) -> Gap:
    """Say of nodes that nothing was ever heard of them.

    Args:
        absent: Their numbers.
        waited_s: Seconds for which somebody has listened.
        where: The place where nodes meet, in words.
    """
    return Gap(
        which_nodes(absent),
        None,
        f"nothing was heard from there for {waited_s:.0f} s: it has not come, no hangcheck run "
        f"watches there, or it does not reach {where}",
        "other_nodes",
    )


def unused_nodes(unused: Mapping[int, str]) -> list[Gap]:
    """Say of nodes that what they tell cannot be read, those of one reason together.

    Args:
        unused: Why, by their number.
    """
    alike: dict[str, list[int]] = {}
    for node, why in unused.items():
        alike.setdefault(why, []).append(node)
    return [
        Gap(which_nodes(nodes), None, f"what is told there is not used: {why}", "other_nodes")
        for why, nodes in alike.items()
    ]


def which_nodes(nodes: Iterable[int]) -> str:
    """Write ``node 3`` or ``nodes 3-5``."""
    numbers = format_ranks(nodes)
    return f"node{'s' if ',' in numbers or '-' in numbers else ''} {numbers}"


def _last_known(heard: Heard) -> str:
    """The furthest that its ranks were known to be."""
    beats = [*(view.beat for view in heard.views), heard.state.furthest]
    marks = [beat.checkpoint for beat in beats if beat and beat.checkpoint]
    steps = [beat.step for beat in beats if beat and beat.step is not None]
    mark = max(marks, key=lambda one: one.number, default=None)
    known = [f"checkpoint {mark.number} ({mark.name})"] if mark is not None else []
    known += [f"step {max(steps)}"] if steps else []
    return ", ".join(known)
