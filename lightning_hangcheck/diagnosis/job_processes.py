"""Which process of the job is meant: process ids and paths of several hosts, told apart. Pure.

Containers number their processes alike, so process 17 may be a rank on each of many nodes. What is
said of a process in a view is said of its host, unless it names another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.evidence import Holder, ProcessLook
from lightning_hangcheck.reading.waits.free_threads import free_threads
from lightning_hangcheck.reading.waits.kernel_targets import steady_targets, works

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lightning_hangcheck.model.case import RankView
    from lightning_hangcheck.model.evidence import WaitTarget
    from lightning_hangcheck.reading.waits.free_threads import FreeThread

    Process = tuple[str, int]


class JobProcesses(Struct, frozen=True):
    """The processes of all ranks, by host and number.

    Attributes:
        ranks: Whose own process each is.
        nodes: Of ranks and workers, their node in the wait-for graph.
        looks: What was seen of each.
        several_hosts: Whether a number or a path may mean another thing on another host.
    """

    ranks: dict[Process, int]
    nodes: dict[Process, str]
    looks: dict[Process, ProcessLook]
    several_hosts: bool

    def node(self, host: str, pid: int) -> str:
        """Return the node of a process in the wait-for graph: ``rank:3``, ``pid:17@node1``."""
        return self.nodes.get((host, pid), f"pid:{pid}{self._at(host)}")

    def holder_node(self, host: str, holder: Holder) -> str:
        """Return the node of a process that could end a wait.

        Args:
            host: Of whoever waits.
            holder: The process.
        """
        return self.node(*process_of(host, holder))

    def rank_of(self, host: str, holder: Holder) -> int | None:
        """Return the rank whose own process could end a wait; None where it is no rank's.

        Args:
            host: Of whoever waits.
            holder: The process.
        """
        return self.ranks.get(process_of(host, holder))

    def file_node(self, host: str, target: WaitTarget) -> str:
        """Return the node of a file: of the same path on two hosts' own disks there are two."""
        return f"file:{target.name}{'' if target.shared_storage else self._at(host)}"

    def threads_that_could_end(self, host: str, target: WaitTarget) -> Iterator[FreeThread]:
        """Yield the free threads of whoever holds or serves what is waited for.

        Args:
            host: Of whoever waits.
            target: What for.
        """
        for holder in target.holders:
            look = self.looks.get(process_of(host, holder))
            yield from free_threads(look) if look is not None else ()

    def threads_along(self, host: str, targets: Iterable[WaitTarget]) -> Iterator[FreeThread]:
        """Yield those of all processes that a wait leads through, from one to the next.

        Args:
            host: Of whoever waits.
            targets: What for.
        """
        pending = [(host, target) for target in targets]
        met: set[Process] = set()
        for where, target in pending:
            yield from self.threads_that_could_end(where, target)
            new = {process_of(where, one) for one in target.holders} - met
            met |= new
            looks = [(process[0], self.looks[process]) for process in new if process in self.looks]
            pending += [(there, one) for there, look in looks for one in steady_targets(look)]

    def _at(self, host: str) -> str:
        return f"@{host}" if self.several_hosts and host else ""


def process_of(host: str, holder: Holder) -> Process:
    """Return the process that could end a wait, by its host and number.

    Args:
        host: Of whoever waits.
        holder: The process.
    """
    return holder.host or host, holder.pid


def job_processes(views: Iterable[RankView]) -> JobProcesses:
    """Find out who is who in a job."""
    every = list(views)
    ranks = {(one.host, one.pid): one.rank for one in every if one.pid is not None}
    nodes = {process: f"rank:{rank}" for process, rank in ranks.items()}
    looks = {(view.host, look.pid): look for view in every for look in view.processes}
    for view in every:
        for look in view.processes:
            if look.role == "worker":
                nodes[view.host, look.pid] = f"worker:{view.rank}/{look.index}"
    hosts = {view.host for view in every if view.host}
    return JobProcesses(ranks, nodes, looks, len(hosts) > 1)


def works_outside(
    view: RankView, targets: Iterable[WaitTarget], known: Collection[Process]
) -> bool:
    """Whether a process outside the job works for what a rank waits for.

    Args:
        view: The rank.
        targets: What it waits for.
        known: Processes of the job: whether these work, their own samples tell.
    """
    own, holders = view.own_process, (one for target in targets for one in target.holders)
    outside = (one for one in holders if process_of(view.host, one) not in known)
    return own is not None and any(works(own, holder) for holder in outside)
