"""Ranks that form a process group wait for those that have not come, or for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.edges.drawing import each_to_each, through
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene

STORE = "host:store"
"""The store's address is not known yet: that needs the socket, which no probe reads so far."""


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits in the rendezvous for whom.

    Rank 0 keeps the store unless the launcher does, so a rank that finds no store waits for rank 0
    while that one has not come to the rendezvous.
    """
    waiting = scene.waiting_in({"rendezvous_peers"})
    arrived = {reading.rank for reading in waiting}
    absent = [reading for reading in scene.ranks.values() if reading.rank not in arrived]
    yield from each_to_each(waiting, absent)
    connecting = scene.waiting_in({"rendezvous_connect"})
    keeper = scene.ranks.get(0)
    comes_late = keeper is not None and keeper.activity != "waiting"
    for reading in connecting:
        target = keeper.node if comes_late and keeper is not None else STORE
        yield Edge(reading.node, target, through(reading))
