"""What two nodes cannot both be right about: said once, also where nothing hangs. Pure."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from lightning_hangcheck.nodes.heard import ranks_of
from lightning_hangcheck.reading.wording import name_ranks
from lightning_hangcheck.version import __version__
from lightning_hangcheck.watch.other_nodes.round_number import STOOD_S
from lightning_hangcheck.watch.other_nodes.silent_nodes import which_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.nodes.digest import RoundMark
    from lightning_hangcheck.nodes.heard import Heard

MOST_COMPARED = 4_096
"""Ranks; comparing more would cost more than it is worth each second."""
LONGEST_ADDRESS = 64
"""Characters of one, with the name of its interface."""


def contradictions(
    own: Case, mark: RoundMark, heard: Iterable[Heard], number: int
) -> Iterator[str]:
    """Compare what nodes tell with what is seen here, and with each other.

    Args:
        own: Case of the ranks of this node.
        mark: Of their round.
        heard: Of the others; what is of another round, or without a launcher's word for its ranks,
            is left out.
        number: Of this node.

    Yields:
        A sentence for each node that contradicts: how, and what to mend.
    """
    if own.run.local_world_size is None:
        return
    size = own.run.world_size
    holders = {view.rank: number for view in own.ranks[:MOST_COMPARED]}
    for one in heard:
        node, told = one.state.node, one.state.world_size
        if one.state.round != own.run.round or one.state.local_world_size is None:
            continue
        if size and told and told != size:
            yield (
                f"node {node} says that the job has {told} ranks, node {number} that it has "
                f"{size}: start all nodes with the same --nnodes and --nproc-per-node (or "
                "WORLD_SIZE)"
            )
        if _looks_elsewhere(one.state.mark, mark):
            yield (
                f"the ranks of node {node} look for their store at port {one.state.mark.store_port}"
                f" of MASTER_ADDR, those of node {number} at port {mark.store_port}: torchrun "
                "handed out an address of an earlier round; export "
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 where each node's torchrun is started"
            )
        ranks = islice(ranks_of(one), MOST_COMPARED - len(holders))
        doubled = [rank for rank in ranks if holders.setdefault(rank, node) != node]
        if doubled:
            yield (
                f"{name_ranks(doubled)} {'is' if len(doubled) == 1 else 'are'} on node {node} and "
                f"on node {holders[doubled[0]]}: give each node another --node-rank (or NODE_RANK)"
            )


def other_versions(heard: Iterable[Heard], number: int) -> dict[int, str]:
    """Say which versions of this package nodes run that tell what can be read here all the same.

    Args:
        heard: Of the others.
        number: Of this node.

    Returns:
        A sentence for each, by the lowest node that has it.
    """
    nodes: dict[str, list[int]] = {}
    for one in heard:
        if one.state.software not in ("", __version__):
            nodes.setdefault(one.state.software, []).append(one.state.node)
    return {
        min(there): f"{which_nodes(there)} {'have' if len(there) > 1 else 'has'} "
        f"lightning-hangcheck {version}, node {number} has {__version__}: they understand each "
        "other; install the same on all nodes before the next run"
        for version, there in nodes.items()
    }


def same_number(number: int, addresses: Sequence[str]) -> str:
    """Say that another node has this one's number.

    Args:
        number: Of this node.
        addresses: Of the other, as far as it tells.
    """
    where = f" at {addresses[0][:LONGEST_ADDRESS]}" if addresses else ""
    return (
        f"another node{where} says that it is node {number}, too, and neither is heard as it "
        "should be: give each node another --node-rank (or NODE_RANK)"
    )


def _looks_elsewhere(there: RoundMark, here: RoundMark) -> bool:
    """Whether ranks of two nodes cannot meet; asked once both had the time to be told.

    torch 2.13's agents keep the address of the first round that they were in, while the first node
    may be another one since (dynamic_rendezvous.py, ``_bootstrap_store_info``).
    """
    if min(there.began_s, here.began_s) < STOOD_S:
        return False
    return there.store_port not in (0, here.store_port) and here.store_port != 0
