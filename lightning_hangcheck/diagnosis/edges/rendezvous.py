"""Ranks that form a process group wait for those that have not come, or for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.diagnosis.edges.drawing import each_to_each, through
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import Scene

STORE = "host:store"
"""A rank that finds no store sleeps between its attempts: no socket shows the address then."""


def edges(scene: Scene) -> Iterator[Edge]:
    """Draw who waits in the rendezvous for whom.

    Rank 0 keeps the store unless the launcher does, so a rank that finds no store waits for rank 0
    while that one has not come to the rendezvous. Rank 0 itself stands in the same call until the
    others have come: while one of them is still on its way, that is whom it waits for.
    """
    waiting = scene.waiting_in({"rendezvous_peers"})
    arrived = {reading.rank for reading in waiting}
    absent = [reading for reading in scene.ranks.values() if reading.rank not in arrived]
    yield from each_to_each(waiting, absent)
    connecting = scene.waiting_in({"rendezvous_connect"})
    keeper = scene.ranks.get(0)
    comes_late = keeper is not None and keeper.activity != "waiting"
    coming = [one for one in scene.ranks.values() if one.activity != "waiting"]
    for reading in connecting:
        if reading.rank == 0 and coming:
            yield from each_to_each([reading], coming)
            continue
        target = keeper.node if comes_late and keeper is not None else STORE
        yield Edge(reading.node, target, through(reading))
