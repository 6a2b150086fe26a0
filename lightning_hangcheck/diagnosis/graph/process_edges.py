"""Processes of the job that stand still in a wait which the kernel names.

A process that waits for a file, or for the lock on one, waits for whoever holds it.

A process that waits for the end of a child waits for that child.

A process that reads an empty pipe, or writes a full one, waits for the other end.

A process that waits at a connection waits for its remote end: a process of the job or a host.

A rank that waits for its next batch waits for the workers that should make it.

A rank whose threads stand in locks that only its own threads can release waits for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.model.verdict import Edge
from lightning_hangcheck.reading.kernel_targets import steady_targets
from lightning_hangcheck.reading.rank_activity import observe
from lightning_hangcheck.reading.thread_locks import read_locks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.diagnosis.job import JobReading, RankReading, WorkerReading


class Blocked(Struct, frozen=True):
    """A process by its node in the wait-for graph, and what it waits for."""

    node: str
    targets: tuple[WaitTarget, ...]


def blocked(job: JobReading) -> Iterator[Blocked]:
    """Find idle ranks and workers, and the idle children that they wait for, one after another.

    A rank in the DataLoader waits for its workers, whatever pipe it polls for them; a worker
    without work waits for its rank, and holds nobody up.
    """
    for reading in job.ranks.values():
        found = list(_own(reading))
        yield from found
        awaited = {holder.pid for one in found for t in one.targets for holder in t.holders}
        yield from _children(reading, awaited)


def nodes(job: JobReading) -> dict[int, str]:
    """Return the node of each rank's and worker's process; any other process is ``pid:N``."""
    found = {one.view.pid: one.node for one in job.ranks.values() if one.view.pid is not None}
    for reading in job.ranks.values():
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


THROUGH = {"lock": "for the lock", "file": "in file input or output", "fifo": "for its other end"}


def file_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits for which file, and who holds that."""
    known = nodes(job)
    for process in blocked(job):
        for target in process.targets:
            if target.kind in THROUGH and target.name:
                file = f"file:{target.name}"
                yield Edge(process.node, file, THROUGH[target.kind])
                for holder in target.holders:
                    yield Edge(file, known.get(holder.pid, f"pid:{holder.pid}"), "held by")


def child_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits for which child to end."""
    known = nodes(job)
    for process in blocked(job):
        for target in process.targets:
            if target.kind == "process":
                node = known.get(int(target.name), f"pid:{target.name}")
                yield Edge(process.node, node, "for its end")


def pipe_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits at a pipe for which process of the job."""
    known = nodes(job)
    for process in blocked(job):
        for target in process.targets:
            if target.kind == "pipe":
                for holder in target.holders:
                    node = known.get(holder.pid, f"pid:{holder.pid}")
                    yield Edge(process.node, node, f"in {target.call} on {target.name}")


def connection_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits for which remote end; one that accepts connections waits for anybody."""
    known = nodes(job)
    for process in blocked(job):
        for target in process.targets:
            if target.kind != "socket" or not target.name or target.call.startswith("accept"):
                continue
            through = f"in {target.call}"
            for holder in target.holders:
                yield Edge(process.node, known.get(holder.pid, f"pid:{holder.pid}"), through)
            if not target.holders:
                yield Edge(process.node, f"host:{target.name}", through)


DATALOADER = "for its next batch"


def dataloader_edges(job: JobReading) -> Iterator[Edge]:
    """Draw which rank waits for which of its workers."""
    for reading in job.ranks.values():
        if reading.wait_kind == "dataloader":
            for worker in owing_workers(reading):
                yield Edge(reading.node, f"worker:{reading.rank}/{worker.look.index}", DATALOADER)


def owing_workers(reading: RankReading) -> Sequence[WorkerReading]:
    """Return the workers that may owe the batch: those that don't wait for work themselves.

    All of them where each waits for work, because then nothing tells.
    """
    owing = [worker for worker in reading.workers if not worker.wants_work]
    return owing or reading.workers


def thread_lock_edges(job: JobReading) -> Iterator[Edge]:
    """Draw which rank waits for its own threads."""
    for reading in job.ranks.values():
        if reading.activity == "idle" and read_locks(reading.view) is not None:
            yield Edge(reading.node, reading.node, "for a lock of its own threads")
