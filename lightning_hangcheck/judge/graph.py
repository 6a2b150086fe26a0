"""The wait-for graph: who waits for whom. The culprits are where it ends.

Ranks wait for each other in collectives, in the rendezvous, at the store and in calls. Waits for
processes and things are those whose enders all have names. `solve` finds the ends; `patience` says
how long to wait before reporting.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from lightning_hangcheck.judge.activity import read_process_activity
from lightning_hangcheck.judge.frames import waits_for_ranks
from lightning_hangcheck.judge.job import could_end, process_of
from lightning_hangcheck.judge.operations import (
    PAIRED,
    AllOf,
    going_on,
    pending_collective,
    record_of,
    waiting_together,
)
from lightning_hangcheck.judge.processes import pids_here, read_process
from lightning_hangcheck.judge.wording import join
from lightning_hangcheck.model.verdict import Edge

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.judge.divergence import Divergence
    from lightning_hangcheck.judge.job import JobProcesses, JobReading, Node, RankReading
    from lightning_hangcheck.judge.knowledge import WaitKind
    from lightning_hangcheck.model.evidence import TargetKind, WaitTarget

    Following = Mapping[Hashable, Sequence[Hashable]]
    Waits = Sequence["Wait | tuple[Sequence[Node], Sequence[Node]]"]

MOST_FULL = 4_096
"""Edges between two sets of nodes up to which all are drawn: 64 times 64."""
UNNAMED = ("", "undefined", "default_pg")
"""Groups for which the program has no name of its own."""
AT_STORE = "for a key of the store"
THROUGH_FILE: dict[TargetKind, str] = {
    "lock": "for the lock",
    "file": "in file input or output",
    "fifo": "for its other end",
}
STORE = "host:store"
"""A rank that finds no store sleeps between attempts: then no socket shows the address."""


class Wait(NamedTuple):
    """Nodes that wait for the same others; one object serves a hundred thousand ranks.

    Attributes:
        waiters: Who waits: a rank by its number, else a node as `model.verdict.Edge` names it.
        enders: Who could end the wait: any of them, or `AllOf` them together.
        through: What each waiter waits in.
        firm: The wait shows that something is due. A pipe or connection only shows who could end
            it: a service sits there for as long as nobody asks it anything.
    """

    waiters: tuple[Node, ...]
    enders: tuple[Node, ...]
    through: tuple[str, ...]
    firm: bool = True

    @property
    def size(self) -> int:
        """Number of edges drawn: all, or above `MOST_FULL` one from each waiter and one to each."""
        waiters, enders = len(self.waiters), len(self.enders)
        return waiters * enders if waiters * enders <= MOST_FULL else waiters + enders - 1

    @property
    def edges(self) -> Iterator[Edge]:
        """The edges that are drawn."""
        full = self.size == len(self.waiters) * len(self.enders)
        for number, (waiter, through) in enumerate(zip(self.waiters, self.through, strict=True)):
            ends = self.enders if full or number == 0 else self.enders[:1]
            yield from (Edge(_name(waiter), _name(ender), through) for ender in ends)


def _name(node: Node) -> str:
    return f"rank:{node}" if isinstance(node, int) else node


class WaitGraph(Struct, frozen=True, kw_only=True):
    """Who waits for whom, and where that ends.

    Attributes:
        ends: Ranks where the graph ends: they or their workers wait for no other rank, or only for
            each other.
        waiters: All other ranks in the graph.
        between_ranks: Whether any rank waits for another one, not only for a worker or a store.
            Waits at pipes and connections alone do not count.
        circles: As in `Solution`.
    """

    waits: tuple[Wait, ...] = ()
    ends: tuple[int, ...] = ()
    waiters: tuple[int, ...] = ()
    between_ranks: bool = False
    circles: dict[int, tuple[int, ...]] = {}

    @property
    def size(self) -> int:
        """How many edges it has."""
        return sum(wait.size for wait in self.waits)

    def edges(self, most: int) -> tuple[Edge, ...]:
        """Return each edge once; of more than ``most`` edges, first one to each ender.

        Those that others wait for come before those that wait.
        """
        every = chain.from_iterable(wait.edges for wait in self.waits)
        if self.size <= most:
            return tuple(dict.fromkeys(every))
        to_each: dict[Node, Edge] = {}
        for wait in self.waits:
            if len(to_each) < most:
                first, through = _name(wait.waiters[0]), wait.through[0]
                for ender in wait.enders[:most]:
                    to_each.setdefault(ender, Edge(first, _name(ender), through))
        return tuple(dict.fromkeys((*to_each.values(), *islice(every, most))))[:most]

    def leading_to(self, ranks: Iterable[int]) -> int:
        """Count the ranks that wait for any of these ranks, directly or not, these included."""
        leading: dict[Hashable, list[Hashable]] = {}
        for wait in self.waits:
            leading[wait] = [*wait.waiters]
            for ender in wait.enders:
                leading.setdefault(ender, []).append(wait)
        pending: list[Hashable] = [*ranks]
        found = set(pending)
        for node in pending:
            new = [before for before in leading.get(node, ()) if before not in found]
            found.update(new)
            pending += new
        return len(_ranks(found))


def build_graph(
    job: JobReading, divergence: Divergence | None, awaited: Mapping[int, tuple[int, ...]]
) -> WaitGraph:
    """Draw all waits, and find where they end and which circles are closed."""
    found = chain(
        _in_collectives(job, divergence, awaited),
        _in_rendezvous(job),
        _for_all_others(job, "guard"),
        _in_calls(job),
        _at_store(job),
        _of_processes(job),
    )
    waits = tuple(dict.fromkeys(found))
    gone = {rank for rank, reading in job.ranks.items() if reading.activity == "gone"}
    solved = solve(waits, gone)
    firm = [wait for wait in waits if wait.firm]
    surely = solved if len(firm) == len(waits) else solve(firm, gone)
    everyone = _ranks(node for wait in waits for node in wait.waiters)
    return WaitGraph(
        waits=waits,
        ends=tuple(sorted(solved.ends)),
        waiters=tuple(sorted(everyone - solved.ends)),
        between_ranks=surely.joined,
        circles=solved.circles,
    )


# The solution.


class Solution(NamedTuple):
    """The ends and circles of all waits.

    Attributes:
        ends: As in `WaitGraph`.
        circles: For each rank of a closed circle, all its ranks; a rank that waits for itself is
            alone.
        joined: Whether a rank waits for another one, directly or through files and processes.
    """

    ends: set[int]
    circles: dict[int, tuple[int, ...]]
    joined: bool


def solve(waits: Waits, gone: Collection[Node] = ()) -> Solution:
    """Find ends and circles; nodes that wait for each other are one component.

    Who can never go on waits for the others of this kind alone: what a busy member of its group
    does changes nothing.

    An end that is no rank (a store, a file) is represented by the ranks that lead to it. A worker
    counts as its rank, unless that rank waits, and for none of its workers: then the worker is a
    thing, too.
    """
    stuck, ended = _who_is_stuck(waits, gone)
    following: dict[Hashable, tuple[Hashable, ...]] = {}
    starts: dict[Hashable, None] = {}
    for number, (every, all_enders, *_) in enumerate(waits):
        can_end = number in ended
        waiters = [node for node in every if not can_end or node not in stuck]
        enders = [node for node in all_enders if can_end or node in stuck]
        if not waiters:
            continue
        starts.update(dict.fromkeys(enders))
        between: tuple[Hashable, ...] = (*enders,)
        many = len(waiters) > 1 and len(enders) > 1
        if many and all(isinstance(ender, int) for ender in enders):  # saves an edge for each pair
            following["wait", number], between = between, (("wait", number),)
            starts["wait", number] = None
        for waiter in waiters:
            following[waiter] = (*following[waiter], *between) if waiter in following else between
    ends, circles, joined = set[int](), dict[int, tuple[int, ...]](), False
    part_of: dict[Hashable, int] = {}
    leads_to_thing: set[int] = set()
    leads_to: list[list[int]] = []  # at most two ranks of each part, its own included
    last = ([node] for node in following if node not in part_of)  # nodes for which nobody waits
    for number, part in enumerate(chain(_parts(following, starts), last)):
        part_of.update(dict.fromkeys(part, number))
        after = {part_of[follower] for node in part for follower in following.get(node, ())} - {
            number
        }
        ranks = everyone = themselves = {node for node in part if isinstance(node, int)}
        if len(themselves) < len(part):
            everyone = _ranks(part)
            ranks = themselves.union(
                rank for rank in everyone - themselves if rank in _ranks(following.get(rank, part))
            )
        if not joined:
            met = everyone.union(*(leads_to[after_part] for after_part in after))
            joined = bool(everyone) and len(met) > 1
            leads_to.append([*met][:2])
        if not after or not after.isdisjoint(leads_to_thing):
            ends.update(ranks)
            if not ranks:
                leads_to_thing.add(number)
        if not after and part[0] in following:
            circles.update(dict.fromkeys(themselves, tuple(sorted(themselves))))
    return Solution(ends, circles, joined)


def helpless_in(waits: Sequence[tuple[Sequence[int], Sequence[int]]]) -> set[int]:
    """Return the ranks that can never go on, whatever all others do."""
    stuck, _ = _who_is_stuck(waits, ())
    return {rank for waiters, _ in waits for rank in waiters if rank in stuck}


def _who_is_stuck(waits: Waits, gone: Collection[Node]) -> tuple[set[Node], set[int]]:
    """Return the nodes that can never go on, and the numbers of the waits that can end.

    The least fixed point: who waits for nothing goes on, unless it is gone. A wait for `AllOf` its
    enders needs each, any other one of them; a node, each of its waits for all and one of the rest.
    """
    asks: dict[Node, list[int]] = {}  # the waits that each could end
    left: list[int] = []  # how many enders each wait still needs
    needed: dict[Node, int] = {}  # twice the waits for all that have not ended; odd: one of others
    for number, (waiters, enders, *_) in enumerate(waits):
        every = isinstance(enders, AllOf)
        left.append(len(enders) if every else 1)
        alone = [number]  # shared, for most could end one wait only
        for ender in enders:
            known = asks.setdefault(ender, alone)
            if len(known) > 1:
                known.append(number)
            elif known is not alone:
                asks[ender] = [*known, number]
        for waiter in waiters:
            before = needed.get(waiter, 0)
            needed[waiter] = before + 2 if every else before | 1
    pending = [node for node in asks if node not in needed and node not in gone]
    ended = set[int]()
    for node in pending:
        for number in asks.get(node, ()):
            left[number] -= 1
            if left[number]:
                continue
            ended.add(number)
            waiters, enders, *_ = waits[number]
            every = isinstance(enders, AllOf)
            for waiter in waiters:
                before = needed[waiter]
                needed[waiter] = before - 2 if every else before & ~1
                if before and not needed[waiter] and waiter not in gone:
                    pending.append(waiter)
    return {node for node, waits_left in needed.items() if waits_left}.union(gone), ended


def _parts(following: Following, starts: Iterable[Hashable]) -> Iterator[list[Hashable]]:
    """Yield strongly connected components, each after all components that it leads to.

    Tarjan 1972, without recursion.
    """
    met: dict[Hashable, int] = {}
    first: dict[Hashable, float] = {}  # the earliest node that each leads back to
    path: list[Hashable] = []
    for start in starts:
        pending = [] if start in met else [(start, iter(following.get(start, ())))]
        while pending:
            node, rest = pending[-1]
            if node not in met:
                met[node] = first[node] = len(met)
                path.append(node)
            for follower in rest:
                if follower not in met:
                    pending.append((follower, iter(following.get(follower, ()))))
                    break
                first[node] = min(first[node], first[follower])
            else:
                pending.pop()
                if pending:
                    before = pending[-1][0]
                    first[before] = min(first[before], first[node])
                if first[node] == met[node]:
                    part = [path.pop()]
                    while part[-1] != node:
                        part.append(path.pop())
                    first.update(dict.fromkeys(part, float("inf")))
                    yield part


def _ranks(nodes: Iterable[Hashable]) -> set[int]:
    found = set()
    for node in nodes:
        if isinstance(node, int):
            found.add(node)
        elif isinstance(node, str) and node.startswith("worker:"):
            found.add(int(node[len("worker:") :].partition("/")[0]))
    return found


# Where the waits come from.


def _in_collectives(
    job: JobReading, divergence: Divergence | None, awaited: Mapping[int, tuple[int, ...]]
) -> Iterator[Wait]:
    """Draw waits in collectives.

    Diverged ranks that nobody can help on are waited for by the others. If nothing tells who
    diverged, ranks wait for the other ends of their messages, or else for each other.
    """
    parted = set(divergence.operations) if divergence is not None else set()
    helped = {ender for rank in parted for ender in awaited.get(rank, ())} - parted
    helped = helped and parted - helpless_in(waiting_together(awaited))
    if divergence is not None and not helped:
        rest = tuple(sorted(parted.difference(divergence.diverged)))
        if rest:
            yield from _each_for_each(job, rest, divergence.diverged)
        elif all(
            (wait := job.ranks[rank].wait) and wait.name in PAIRED and awaited.get(rank)
            for rank in parted
        ):
            parted = set()  # all other ends of their messages are known
        else:
            by_way: dict[object, list[int]] = {}
            for pending in divergence.pending_collectives:
                way = (
                    pending.group,
                    str(divergence.operations[pending.rank]),
                    pending.reading.frames,
                )
                by_way.setdefault(way, []).append(pending.rank)
            sides = list(by_way.values())
            sides = sides if len(sides) > 1 else [[rank] for rank in sides[0]]
            for side, following in zip(sides, (*sides[1:], sides[0]), strict=True):
                yield from _each_for_each(job, side, following)
        awaited = {rank: others for rank, others in awaited.items() if rank not in parted}
    known: dict[tuple[int, int], str] = {}
    for waiting, others in waiting_together(awaited):
        yield from _each_for_each(job, waiting, others, known)


def _in_rendezvous(job: JobReading) -> Iterator[Wait]:
    """Draw waits in the rendezvous.

    Rank 0 keeps the store unless the launcher does. A rank that finds no store waits for rank 0 as
    long as that has not come. Rank 0 stays in the same call until the others have come, and waits
    for those.
    """
    yield from _for_all_others(job, "rendezvous_peers")
    connecting = [reading.rank for reading in job.waiting_in({"rendezvous_connect"})]
    coming = [
        rank for rank, reading in job.ranks.items() if connecting and reading.activity != "waiting"
    ]
    if 0 in connecting and coming:
        yield from _each_for_each(job, [0], coming)
        connecting.remove(0)
    if connecting:
        through = tuple(_through(job.ranks[rank]) for rank in connecting)
        yield Wait(tuple(connecting), (0 if 0 in coming else STORE,), through)


def _for_all_others(job: JobReading, kind: WaitKind) -> Iterator[Wait]:
    waiting = {reading.rank: None for reading in job.waiting_in({kind})}
    others = tuple(rank for rank in job.ranks if rank not in waiting)
    yield from _each_for_each(job, [*waiting], AllOf(going_on(job, others)))


def _in_calls(job: JobReading) -> Iterator[Wait]:
    """Callers by torch's RPC wait for ranks that serve; a rank at its end, for its callers.

    One that serves, and waits for nothing with a name, waits for calls that have not come yet.
    """
    idle = [reading for reading in job.alive if reading.activity == "idle"]
    calling = [
        reading.rank
        for reading in idle
        if reading.wait_kind == "call" or (reading.wait is None and reading.called_by_ranks)
    ]
    serving = [reading.rank for reading in idle if calling and reading.own.serves_calls]
    yield from _each_for_each(job, [rank for rank in calling if rank not in serving], serving)
    yet_to_call = [
        other.rank
        for other in job.alive
        if serving and other.rank not in calling and other.rank not in serving
    ]
    served = ((rank, job.ranks[rank]) for rank in serving)
    gathering = [rank for rank, own in served if own.wait_kind != "call" and not own.targets]
    yield from _each_for_each(job, gathering, yet_to_call)
    for rank in sorted(set(calling).intersection(serving)):
        yield from _each_for_each(job, [rank], [other for other in serving if other != rank])
    last = [reading.rank for reading in idle if reading.wait_kind == "last_calls"]
    yield from _each_for_each(job, last, [rank for rank in job.ranks if rank not in last])


def _at_store(job: JobReading) -> Iterator[Wait]:
    """Ranks at the store wait for ranks that wait for nothing; without these, for gone ranks."""
    waiting = tuple(reading.rank for reading in job.ranks.values() if reading.at_store)
    others = [reading for reading in job.ranks.values() if waiting and not reading.at_store]
    free = [
        reading.rank
        for reading in others
        if reading.activity == "unheard" or (reading.alive and reading.activity != "waiting")
    ]
    if enders := free or [reading.rank for reading in others if reading.activity == "gone"]:
        yield Wait(waiting, tuple(enders), (AT_STORE,) * len(waiting))


def _each_for_each(
    job: JobReading,
    waiters: Sequence[int],
    others: Sequence[int],
    known: dict[tuple[int, int], str] | None = None,
) -> Iterator[Wait]:
    if not waiters or not others:
        return
    known = {} if known is None else known
    through = []
    for rank in waiters:
        reading = job.ranks[rank]
        key = reading.representative, id(reading.wait)
        if key not in known:
            known[key] = _through(reading)
        through.append(known[key])
    enders = others if isinstance(others, AllOf) else tuple(others)
    yield Wait(tuple(waiters), enders, tuple(through))


def _through(reading: RankReading) -> str:
    """Say what a rank waits in, and in which group by the program's own name for it."""
    if reading.wait is None:
        return ""
    pending = pending_collective(reading)
    group = pending.group if pending is not None else None
    record = record_of(reading, group) if group is not None else None
    named = record is not None and record.description not in UNNAMED
    of_group = f"of {record.description}" if record is not None and named else ""
    return join(reading.in_wait, of_group)


def _of_processes(job: JobReading) -> Iterator[Wait]:
    """Draw what idle ranks, their workers, and the idle children they wait for, wait for.

    A rank in the DataLoader waits for its workers, whatever pipe it polls for them. A worker
    without work waits for its rank and holds nobody up; nor does a child that nobody waits for. At
    an object of multiprocessing, a rank waits for the sharing ranks that are elsewhere.
    """
    at_object = {
        reading.rank: {target.name for target in found}
        for reading in job.ranks.values()
        if (found := reading.shared_objects)
    }
    together: dict[tuple[tuple[Node, ...], str, bool], list[Node]] = {}
    for rank, reading in job.ranks.items():
        if reading.activity != "idle" and not reading.workers:
            continue
        host = reading.view.host
        blocked: list[tuple[Node, Sequence[WaitTarget]]] = []
        if reading.wait_kind == "dataloader" and reading.owing_workers:
            workers = tuple(map(reading.worker_node, reading.owing_workers))
            yield Wait((rank,), workers, ("for its next batch",))
        elif reading.wait_kind != "dataloader" and not reading.at_store:
            blocked.append((rank, reading.own_targets))
        blocked += [
            (reading.worker_node(look), read_process(look).targets)
            for look in reading.workers
            if reading.activity_of(look) == "idle" and not read_process(look).wants_work
        ]
        awaited = {pid for target in reading.own_targets for pid in pids_here(target)}
        for look in reading.workers:
            if look.pid in awaited and waits_for_ranks(read_process(look).frames):
                alike = job.processes.alike((host, look.pid))
                if peers := tuple(job.processes.node(*process) for process in alike):
                    yield Wait(
                        (reading.worker_node(look),), peers, ("in a collective",), firm=False
                    )
        children = {look.pid: look for look in reading.view.processes if look.role == "child"}
        for node, targets in blocked:
            drawn = [*_named(job.processes, host, node, targets)]
            for waiter, enders, through, firm in drawn:
                together.setdefault((enders, through, firm), []).append(waiter)
            for pid in [pid for target in targets if drawn for pid in pids_here(target)]:
                if (child := children.pop(pid, None)) is not None:
                    idle = read_process_activity(child).activity == "idle"
                    blocked.append(
                        (job.processes.node(host, pid), read_process(child).targets if idle else ())
                    )
        if reading.activity == "idle" and reading.own.locked:
            yield Wait((rank,), (rank,), ("for a lock of its own threads",))
        for target in reading.shared_objects:
            sharing = {process_of(host, holder) for holder in target.holders}
            ranks = {
                job.processes.ranks[process]
                for process in sharing
                if process in job.processes.ranks
            }
            others = sorted(
                sharer for sharer in ranks if target.name not in at_object.get(sharer, ())
            )
            # a process beside the ranks may be the one that brings it
            outsiders = sorted(
                job.processes.node(*process) for process in sharing - job.processes.looks.keys()
            )
            if ends := outsiders or others:
                yield Wait((rank,), tuple(ends), ("at a semaphore or lock that they share",))
    for (enders, through, firm), nodes in together.items():
        waiters = tuple(dict.fromkeys(nodes))
        yield Wait(waiters, enders, (through,) * len(waiters), firm)


def _named(
    processes: JobProcesses, host: str, waiter: Node, targets: Sequence[WaitTarget]
) -> Iterator[tuple[Node, tuple[Node, ...], str, bool]]:
    """Yield a wait's edges: waiter, enders, through what, and whether firm as in `Wait`.

    None if any ender has no name: an unknown ender would be a way out.
    """
    if not all(target.name and target.kind != "other" for target in targets):
        return
    for target in targets:
        ends = tuple(processes.node(*process) for process in could_end(host, target))
        ends = tuple(end for end in ends if end != waiter) or ends
        if target.kind in THROUGH_FILE:
            file = processes.file_node(host, target)
            yield waiter, (file,), THROUGH_FILE[target.kind], True
            if ends:
                yield file, ends, "held by", True
        elif target.kind == "process":
            yield waiter, (processes.node(host, int(target.name)),), "for its end", True
        elif target.kind == "pipe" and ends:
            yield waiter, ends, f"in {target.call} on {target.name}", False
        elif target.kind == "socket" and not target.call.startswith("accept"):
            # a process that accepts connections waits for anybody
            yield waiter, ends or (f"host:{target.name}",), f"in {target.call}", False
