"""Which verdicts all nodes are to tell, and whether they have heard of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.watch.other_nodes.silent_nodes import silent_s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.heard import Heard

RELAYED = ("suspect", "slow", "hang", "dead", "recovered")
"""Verdicts on the whole job; how it ended each node says of its own ranks."""


def is_on_whole_job(verdict: Verdict | None) -> bool:
    """Whether all nodes are to tell it: a pace that was lost is no stall, and told by its own node.

    Args:
        verdict: The newest of a node, None where it told nothing.
    """
    if verdict is None or verdict.verdict not in RELAYED:
        return False
    return verdict.stalled_since is not None


def have_read(judge: int, since: int, others: Iterable[Heard], now_ns: int) -> bool:
    """Whether each node that is still heard has read a word, or a newer one of the same node.

    Args:
        judge: That node.
        since: Stamp of the word.
        others: The nodes that it hears.
        now_ns: Present time.
    """
    there = (one.state for one in others if not silent_s(one, now_ns) and not one.state.ended)
    return all(state.read.judge == judge and state.read.stamp >= since for state in there)
