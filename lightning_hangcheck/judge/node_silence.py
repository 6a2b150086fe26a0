"""Words for a node that is no longer heard: which one, for how long, and what may have happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.judge.wording import duration

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import SilentNode


def which_node(node: SilentNode) -> str:
    """Write ``node 3 (ranks 24-31)``."""
    many = "ranks" if "," in node.ranks or "-" in node.ranks else "rank"
    return f"node {node.number}" + (f" ({many} {node.ranks})" if node.ranks else "")


def why_silent(node: SilentNode) -> str:
    """Say what the silence of a node comes from, as far as anything tells."""
    if node.reach == "answers":
        return "the connections of its ranks still carry something: only its sidecar is dead"
    if node.reach == "goes_on":
        return (
            "the other ranks advance without a pause: only its sidecar is dead, or nobody needs "
            "its ranks"
        )
    if node.reach == "unanswered":
        return (
            f"what is sent to its ranks has not been acknowledged for "
            f"{duration(node.unanswered_s)}: its host is down, or the network is cut"
        )
    return "its host is down, the network is cut, or its sidecar is dead"
