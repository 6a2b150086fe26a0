"""Processes of the job that stand still in a wait which the kernel names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.diagnosis.activity import observe
from lightning_hangcheck.diagnosis.targets import steady_targets
from lightning_hangcheck.model.evidence import WaitTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.diagnosis.scene import RankReading, Scene


class Blocked(Struct, frozen=True):
    """A process by its node in the wait-for graph, and what it waits for."""

    node: str
    targets: tuple[WaitTarget, ...]


def blocked(scene: Scene) -> Iterator[Blocked]:
    """Find idle ranks and workers, and the idle children that they wait for, one after another.

    A rank in the DataLoader waits for its workers, whatever pipe it polls for them; a worker
    without work waits for its rank, and holds nobody up.
    """
    for reading in scene.ranks.values():
        found = list(_own(reading))
        yield from found
        awaited = {holder.pid for one in found for t in one.targets for holder in t.holders}
        yield from _children(reading, awaited)


def nodes(scene: Scene) -> dict[int, str]:
    """Return the node of each rank's and worker's process; any other process is ``pid:N``."""
    found = {one.view.pid: one.node for one in scene.ranks.values() if one.view.pid is not None}
    for reading in scene.ranks.values():
        for worker in reading.workers:
            found[worker.look.pid] = f"worker:{reading.rank}/{worker.look.index}"
    return found


def _own(reading: RankReading) -> Iterator[Blocked]:
    if _known(reading.targets) and reading.wait_kind != "dataloader":
        yield Blocked(reading.node, reading.targets)
    for worker in reading.workers:
        if _known(worker.targets) and not worker.wants_work:
            yield Blocked(f"worker:{reading.rank}/{worker.look.index}", worker.targets)


def _children(reading: RankReading, awaited: set[int]) -> Iterator[Blocked]:
    """A child that nobody waits for may wait for its rank as long as it likes: a service does."""
    idle = {
        look.pid: steady_targets(look)
        for look in reading.view.processes
        if awaited and look.role == "child" and observe(look).activity == "idle"
    }
    pending = [pid for pid in idle if pid in awaited]
    for pid in pending:
        if _known(idle[pid]):
            yield Blocked(f"pid:{pid}", idle[pid])
        following = {holder.pid for target in idle[pid] for holder in target.holders}
        pending += [one for one in idle if one in following and one not in pending]


def _known(targets: tuple[WaitTarget, ...]) -> bool:
    """Whether all that could wake it up is named: an unknown one would be a way out."""
    return bool(targets) and all(target.name and target.kind != "other" for target in targets)
