#!/usr/bin/env python3
"""What it takes to tell, join and judge the digests of many nodes of eight ranks: simulated ranks.

Everything above the probes is the product's own code. All ranks are silent and tell all they have;
one in a hundred stands elsewhere. The nodes pack what they see, each node of the tree unpacks what
those below it told and packs it with its own, the first node joins all of it and has it judged. One
core does that for all nodes, one after the other.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from figures import Figure, tell

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from cases import IN_ALL_REDUCE, IN_LOAD, SITE, job, rank

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.nodes.digest import TAKEN_NS, NodeDigest, digest_of, merge_digests
from lightning_hangcheck.nodes.encoding import BadDigest, pack, unpack
from lightning_hangcheck.nodes.exchange import FIRST, below

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

RANKS_A_NODE = 8
ODD = 100
DEEP = tuple(Frame(f"call_{n}", f"{SITE}/lightning/pytorch/loops/loop.py", n) for n in range(30))
MB = 1e6


def main() -> None:
    """Measure one size after the other, the smallest first: memory is the most so far."""
    options = _parse_options()
    figures: list[Figure] = []
    for nodes in options.nodes:
        figures += _measure(nodes)
    tell(figures, as_json=options.json)


def _measure(nnodes: int) -> list[Figure]:
    own = [_digest(node, nnodes) for node in range(nnodes)]
    what = f"{nnodes * RANKS_A_NODE:,} ranks on {nnodes:,} nodes"
    alone = len(pack(own[FIRST]))
    figures = [Figure(f"{what}: a node's own digest", alone, "bytes", "", "all ranks silent")]
    started = time.process_time()
    try:
        told = _told_to_first(own)
    except BadDigest as error:
        return [*figures, Figure(f"{what}: joined", None, "s", "", f"refused: {error}")]
    tree_s = time.process_time() - started
    size = sum(map(len, told)) / MB
    figures.append(Figure(f"{what}: told to the first node", size, "MB"))
    figures.append(Figure(f"{what}: the whole tree, one core", tree_s, "s"))
    started = time.process_time()
    nodes = [node for data in (pack(own[FIRST]), *told) for node in unpack(data)[1]]
    views = [view for node in nodes for view in node.views]
    read_s = time.process_time() - started
    verdict = judge(job(*views, taken_ns=TAKEN_NS))
    judged_s = time.process_time() - started - read_s
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        *figures,
        Figure(f"{what}: read by the first node", read_s, "s"),
        Figure(f"{what}: judged", judged_s, "s", "", f"{verdict.verdict}, {len(verdict.culprits)}"),
        Figure(f"{what}: verdict", len(encode(verdict)) / 1e3, "kB"),
        Figure(f"{what}: memory of the simulation", memory, "MB", "", "all nodes in one process"),
    ]


def _told_to_first(own: list[NodeDigest]) -> list[bytes]:
    """Go up the tree, from the last node to the first, and return what the first one is told."""
    nnodes, told = len(own), dict[int, bytes]()
    for node in reversed(range(1, nnodes)):
        heard = [unpack(told.pop(child))[0] for child in below(node, nnodes)]
        told[node] = pack(merge_digests([own[node], *heard]))
    return [told[node] for node in below(FIRST, nnodes)]


def _digest(node: int, nnodes: int) -> NodeDigest:
    first, last = node * RANKS_A_NODE, (node + 1) * RANKS_A_NODE
    views = [_rank(number) for number in range(first, last)]
    world = nnodes * RANKS_A_NODE
    case = job(*views, world_size=world, local_world_size=RANKS_A_NODE, nnodes=nnodes)
    return digest_of(case, node, stamp=1)


def _rank(number: int) -> RankView:
    return rank(number, (*DEEP, *(IN_LOAD if number % ODD == 1 else IN_ALL_REDUCE)))


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 16, 128, 1024])
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
