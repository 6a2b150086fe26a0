"""Who waits for which process, by what the kernel, the DataLoader and thread locks show.

The kernel names what an idle process waits for: a file or the lock on one, the end of a child, the
other end of a pipe or of a connection. One loop draws them all, by the lines of `FIRM`
and `OPEN`. A rank that waits for its next batch waits for the workers that should make it; one
whose threads stand in locks that only its own threads can release waits for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import WaitTarget
from lightning_hangcheck.model.verdict import Edge
from lightning_hangcheck.reading.activity.rank_activity import read_process_activity
from lightning_hangcheck.reading.waits.kernel_targets import pids_here, steady_targets
from lightning_hangcheck.reading.waits.thread_locks import read_locks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from lightning_hangcheck.diagnosis.job import JobReading
    from lightning_hangcheck.diagnosis.job_processes import JobProcesses
    from lightning_hangcheck.diagnosis.rank_reading import RankReading, WorkerReading
    from lightning_hangcheck.model.evidence import TargetKind

    Draw = Callable[["_Blocked", WaitTarget, JobProcesses], Iterator[Edge]]
    EdgeTable = Sequence[tuple[Collection[TargetKind], Draw]]

THROUGH_FILE: dict[TargetKind, str] = {
    "lock": "for the lock",
    "file": "in file input or output",
    "fifo": "for its other end",
}
DATALOADER = "for its next batch"
THROUGH_MEMORY = "at a semaphore or lock that they share"


def kernel_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits for which file and who holds that, and who for which child to end."""
    return _edges(job, FIRM)


def open_kernel_edges(job: JobReading) -> Iterator[Edge]:
    """Draw who waits at a pipe, or at a connection, for whom.

    These show who could end the wait, but not that anything is due: a service sits in them for as
    long as nobody asks it anything.
    """
    return _edges(job, OPEN)


def _edges(job: JobReading, table: EdgeTable) -> Iterator[Edge]:
    waits = [(one, target) for one in _blocked(job) for target in one.targets]
    for kinds, draw in table:
        for waiter, target in waits:
            if target.kind in kinds:
                yield from draw(waiter, target, job.processes)


def _to_file(waiter: _Blocked, target: WaitTarget, processes: JobProcesses) -> Iterator[Edge]:
    """A process that waits for a file, or for the lock on one, waits for whoever holds it."""
    file = processes.file_node(waiter.host, target)
    yield Edge(waiter.node, file, THROUGH_FILE[target.kind])
    for node in _holders(waiter, target, processes):
        yield Edge(file, node, "held by")


def _to_child(waiter: _Blocked, target: WaitTarget, processes: JobProcesses) -> Iterator[Edge]:
    yield Edge(waiter.node, processes.node(waiter.host, int(target.name)), "for its end")


def _to_other_end(waiter: _Blocked, target: WaitTarget, processes: JobProcesses) -> Iterator[Edge]:
    """A process that reads an empty pipe, or writes a full one, waits for the other end."""
    for node in _holders(waiter, target, processes):
        yield Edge(waiter.node, node, f"in {target.call} on {target.name}")


def _to_remote_end(waiter: _Blocked, target: WaitTarget, processes: JobProcesses) -> Iterator[Edge]:
    """One that accepts connections waits for anybody."""
    if target.call.startswith("accept"):
        return
    for node in _holders(waiter, target, processes) or [f"host:{target.name}"]:
        yield Edge(waiter.node, node, f"in {target.call}")


def _holders(waiter: _Blocked, target: WaitTarget, processes: JobProcesses) -> list[str]:
    return [processes.holder_node(waiter.host, holder) for holder in target.holders]


FIRM: EdgeTable = ((THROUGH_FILE.keys(), _to_file), ({"process"}, _to_child))
OPEN: EdgeTable = (({"pipe"}, _to_other_end), ({"socket"}, _to_remote_end))
"""What is drawn for which kinds of wait; a new kind adds its line here."""


class _Blocked(Struct, frozen=True):
    """A process by its node in the wait-for graph and its host, and what it waits for."""

    node: str
    host: str
    targets: tuple[WaitTarget, ...]


def _blocked(job: JobReading) -> Iterator[_Blocked]:
    """Find idle ranks and workers, and the idle children that they wait for, one after another.

    A rank in the DataLoader waits for its workers, whatever pipe it polls for them; a worker
    without work waits for its rank, and holds nobody up.
    """
    for reading in job.ranks.values():
        if not reading.own_targets and not reading.workers:
            continue
        found = list(_own(reading))
        yield from found
        awaited = {pid for one in found for target in one.targets for pid in pids_here(target)}
        if awaited:
            yield from _children(reading, awaited, job.processes)


def _own(reading: RankReading) -> Iterator[_Blocked]:
    if _known(reading.own_targets) and reading.wait_kind != "dataloader" and not reading.at_store:
        yield _Blocked(reading.node, reading.view.host, reading.own_targets)
    for worker in reading.workers:
        if _known(worker.targets) and not worker.wants_work:
            node = f"worker:{reading.rank}/{worker.look.index}"
            yield _Blocked(node, reading.view.host, worker.targets)


def _children(
    reading: RankReading, awaited: set[int], processes: JobProcesses
) -> Iterator[_Blocked]:
    """A child that nobody waits for may wait for its rank as long as it likes: a service does."""
    idle = {
        look.pid: steady_targets(look)
        for look in reading.view.processes
        if look.role == "child" and read_process_activity(look).activity == "idle"
    }
    host = reading.view.host
    pending = [pid for pid in idle if pid in awaited]
    for pid in pending:
        if _known(idle[pid]):
            yield _Blocked(processes.node(host, pid), host, idle[pid])
        following = {one for target in idle[pid] for one in pids_here(target)}
        pending += [one for one in idle if one in following and one not in pending]


def _known(targets: tuple[WaitTarget, ...]) -> bool:
    """Whether all that could wake it up is named: an unknown one would be a way out."""
    return bool(targets) and all(target.name and target.kind != "other" for target in targets)


def shared_memory_edges(job: JobReading) -> Iterator[Edge]:
    """Draw which rank waits at an object of multiprocessing for which ranks that share it.

    Not for those that wait at the very same: nobody else of them can bring what is missing.
    """
    waiting = [(one, found) for one in job.ranks.values() if (found := shared_objects(one))]
    names = {one.rank: {target.name for target in found} for one, found in waiting}
    for reading, found in waiting:
        for target in found:
            host = reading.view.host
            sharing = {job.processes.rank_of(host, one) for one in target.holders}
            for other in sorted(rank for rank in sharing if rank not in (None, reading.rank)):
                if target.name not in names.get(other, ()):
                    yield Edge(reading.node, job.ranks[other].node, THROUGH_MEMORY)


def shared_objects(reading: RankReading) -> tuple[WaitTarget, ...]:
    """Return the words of shared memory at which a rank waits; a loader's lead to its workers."""
    if not reading.own_targets or reading.wait_kind == "dataloader":
        return ()
    return tuple(one for one in reading.own_targets if one.kind == "shared" and one.holders)


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
        own = reading.view.own_process if reading.activity == "idle" else None
        if own is not None and read_locks(own) is not None:
            yield Edge(reading.node, reading.node, "for a lock of its own threads")
