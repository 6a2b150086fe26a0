"""Joins the evidence of nodes into one `Case`: seen ranks, expected ranks, and gaps. Pure.

A node's wall clock decides nothing: it may be hours off. Moments of two nodes compare if one node
noted them as it heard the other, or if both are on one machine with one monotonic clock. Otherwise
each node's case counts as of its last look, and which of two moments came first is open.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.model.case import Case, Limits, RankView, RunFacts
from lightning_hangcheck.model.evidence import Connection, Gap, Holder, WaitTarget
from lightning_hangcheck.text.moments import EPOCH, read_utc
from lightning_hangcheck.text.shown import NANOSECONDS, format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.case import SilentNode
    from lightning_hangcheck.model.evidence import Sample

Held = TypeVar("Held", bound=Struct)
ELSEWHERE = "they run on other nodes, or no launcher says where; only this node was looked at"
LAST_WORD_NS = 5 * NANOSECONDS
"""What a lost host saved within this time of its last message is from before its loss."""


def complete_case(case: Case) -> Case:
    """Add the ranks that should be there to those that were seen on one or several nodes.

    A rank that the launcher promised for this node, without a process, joins as a `RankView`
    without a pid. Ranks of other nodes do not join: one gap says so. A world size of 0 becomes the
    number of known ranks.
    """
    known = {view.rank for view in case.ranks}
    known.update(rank for alike in case.alike for rank in parse_ranks(alike.ranks))
    run = replace(case.run, world_size=max(case.run.world_size, len(known)))
    unseen = set(range(run.world_size)) - known
    joined, gaps = list(case.ranks), list(case.gaps)
    if unseen and run.local_world_size is not None and run.local_world_size >= run.world_size:
        silence = max((view.silent_for_s for view in joined), default=0.0)
        joined += [RankView(rank=rank, silent_for_s=silence, idle_for_s=silence) for rank in unseen]
    elif unseen:
        gaps.append(Gap(f"ranks {format_ranks(unseen)}", None, ELSEWHERE, "other_nodes"))
    joined.sort(key=lambda view: view.rank)
    return replace(case, run=run, ranks=tuple(joined), gaps=tuple(gaps))


class NodeCase(Struct, frozen=True):
    """The case of one node, and the name that sentences use for it.

    ``met``: one node heard all of these, and its clock says when each case was taken. Nodes of one
    ``clock`` can be compared with each other.
    """

    source: str
    case: Case
    met: bool = False
    clock: int = 0


def merge_cases(nodes: Sequence[NodeCase], run_id: str) -> Case:
    """Join the cases of several nodes; monotonic times are moved to one clock.

    How long a rank was silent stays as its node saw it. If two nodes contradict each other, a gap
    says so and the newer one counts. Which of two ends came first is open if their clocks cannot be
    compared. Hosts with equal names get names of their own, ``localhost(node-1)``.
    """
    ordered = _on_one_clock(_with_own_names(nodes))
    newest = ordered[0].case
    views, gaps = _join_ranks(ordered)
    cases = [node.case for node in ordered]
    known_gaps = [gap for case in cases for gap in case.gaps if gap.kind != "other_nodes"]
    for node in ordered[1:]:
        for what in ("command", "world_size"):
            here, there = getattr(newest.run, what), getattr(node.case.run, what)
            if here != there:
                first = f"in {ordered[0].source} {here!r}"
                why = f"it is {there!r}, {first}; are these nodes of one job?"
                name = f"{what.replace('_', ' ')} of {node.source}"
                gaps.append(Gap(name, None, why, "job_facts"))
    limits = {
        name: max(getattr(case.limits, name) for case in cases) for name in Limits.__struct_fields__
    }
    merged = Case(
        run=replace(_run_facts(cases, run_id), silent_nodes=_silent_nodes(cases, views)),
        ranks=tuple(_with_remote_ends(views)),
        gaps=(*dict.fromkeys(known_gaps), *gaps),
        code=tuple(dict.fromkeys(note for case in cases for note in case.code)),
        limits=Limits(**limits),
        taken_at=newest.taken_at,
        taken_ns=newest.taken_ns,
        ended=all(case.ended for case in cases),
        exit_code=next((case.exit_code for case in cases if case.exit_code), newest.exit_code),
        alike=tuple(alike for case in cases for alike in case.alike),
        seen_in=newest.seen_in,
        left=newest.left,
    )
    return complete_case(merged)


def _with_own_names(nodes: Sequence[NodeCase]) -> list[NodeCase]:
    """Give machines that share a host name a name of their own."""
    called: dict[tuple[str, str], str] = {}
    for node in nodes:
        for host in {view.host for view in node.case.ranks if view.host and node.case.run.machine}:
            called.setdefault((host, node.case.run.machine), node.source)
    shared = {host for host, count in Counter(host for host, _ in called).items() if count > 1}
    renamed = []
    for node in nodes if shared else ():
        names = {
            host: f"{host}({source.replace(' ', '-')})"
            for (host, machine), source in called.items()
            if host in shared and machine == node.case.run.machine
        }
        views = (replace(view, host=names.get(view.host, view.host)) for view in node.case.ranks)
        renamed.append(replace(node, case=replace(node.case, ranks=tuple(views))))
    return renamed or list(nodes)


def _run_facts(cases: Sequence[Case], run_id: str) -> RunFacts:
    """Facts of the whole run; a rank that several nodes report counts once."""
    local = {
        frozenset(view.host for view in case.ranks if view.host): case for case in reversed(cases)
    }
    known = [case.run.local_world_size for case in local.values()]
    sizes = [size for size in known if size is not None]
    numbered = [view.rank for case in local.values() for view in case.ranks]
    again = len(numbered) - len(set(numbered))
    return RunFacts(
        run_id=run_id,
        command=cases[0].run.command,
        started_at=min(case.run.started_at for case in cases),
        world_size=max(case.run.world_size for case in cases),
        nnodes=max([len(local), *(case.run.nnodes for case in cases)]),
        local_world_size=sum(sizes) - again if len(sizes) == len(local) else None,
        one_by_one=any(case.run.one_by_one for case in cases),
    )


# Clocks


def _on_one_clock(nodes: Sequence[NodeCase]) -> list[NodeCase]:
    """Move all times to one clock, and order cases: newest first, later rounds before earlier."""
    moments: list[int] = []
    clocks: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        # containers of one machine, known by its kernel's start, have one monotonic clock
        machine, moment_ns = node.case.run.machine.partition("-")[0], node.case.taken_ns
        if node.met:
            moment_ns = int((read_utc(node.case.taken_at) - EPOCH).total_seconds() * NANOSECONDS)
        own = f"machine {machine}" if machine else f"node {index}"
        clocks.setdefault("met" if node.met else own, []).append(index)
        moments.append(moment_ns)
    for group in clocks.values():
        group.sort(key=lambda index: -moments[index])
    rounds = [node.case.run.round for node in nodes]
    ordered = sorted(clocks.values(), key=lambda group: -max(rounds[index] for index in group))
    base_ns, found = nodes[ordered[0][0]].case.taken_ns, []
    for clock, group in enumerate(ordered):
        for index in group:
            case, ago_ns = nodes[index].case, moments[group[0]] - moments[index]
            moved = rebased(case, base_ns - ago_ns - case.taken_ns)
            # nobody has seen since what a rank does: its state is as of its node's last look
            views = (v if v.process_exit else rebased(v, ago_ns) for v in moved.ranks)
            moved = replace(moved, ranks=tuple(views)) if ago_ns else moved
            found.append(replace(nodes[index], case=moved, clock=clock))
    return found


def rebased(fact: Held, shift_ns: int) -> Held:
    """Shift every monotonic time in a fact, and in facts inside it.

    By the convention of `model` these are fields whose names end in ``_ns``. 0 means no such time,
    and stays 0.
    """

    def moved(value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
        if isinstance(value, tuple):
            return tuple(map(moved, value))
        return rebased(value, shift_ns) if isinstance(value, Struct) else value

    changed: dict[str, Any] = {}
    for name in _timed(type(fact)):
        value = getattr(fact, name)
        at = name.endswith("_ns")
        changed[name] = moved(value) if not at else value + shift_ns if value else value
    return replace(fact, **changed) if changed else fact


@cache
def _timed(kind: type[Struct]) -> tuple[str, ...]:
    """Return the fields of a fact that hold times, directly or inside."""

    def leads(hint: Any) -> bool:  # noqa: ANN401 - whatever a type is
        if isinstance(hint, type) and issubclass(hint, Struct):
            return bool(_timed(hint))
        return any(map(leads, get_args(hint)))

    hints = get_type_hints(kind)
    return tuple(
        name for name in kind.__struct_fields__ if name.endswith("_ns") or leads(hints[name])
    )


# Ranks that several nodes report


class _Reported(NamedTuple):
    """What one node's case says of a rank; from ``lost_ns`` on nothing was acknowledged there."""

    node: NodeCase
    view: RankView
    lost_ns: int


def _join_ranks(nodes: Sequence[NodeCase]) -> tuple[list[RankView], list[Gap]]:
    """Join ranks, the newest case first.

    A rank that was not there, or that its node's silence hid, is replaced by one that was seen, but
    not by one seen before its host was lost. Ends of processes are numbered over all nodes, by when
    each node saw them; ends by clocks that cannot be compared are kept apart.
    """
    joined: dict[int, _Reported] = {}
    gaps: list[Gap] = []
    for node in nodes:
        lost: dict[int, int] = {}
        for silent in node.case.run.silent_nodes:
            if silent.reach == "unanswered":
                since_ns = node.case.taken_ns - int(silent.silent_s * NANOSECONDS)
                lost.update(dict.fromkeys(parse_ranks(silent.ranks), since_ns))
        for view in node.case.ranks:
            found = _Reported(node, view, lost.get(view.rank, 0))
            before = joined.setdefault(view.rank, found)
            if before is not found and _counts_before(found, before, gaps):
                joined[view.rank] = found
    every = joined.values()
    ended = [
        (seen, seen_rank)
        for seen_rank in every
        if (seen := seen_rank.view.process_exit) is not None
    ]
    failed = {
        joined_rank.node.clock: joined_rank.node.source
        for seen, joined_rank in ended
        if seen.exit_code != 0
    }
    if len(failed) > 1:
        gaps.append(_unknown_clocks(*islice(failed.values(), 2)))
    ended.sort(key=lambda pair: (pair[0].seen_ns, pair[0].order, pair[1].view.rank))
    exits = {
        joined_rank.view.rank: replace(seen, order=order, clock=joined_rank.node.clock)
        for order, (seen, joined_rank) in enumerate(ended)
    }
    views = [
        replace(joined_rank.view, process_exit=exits.get(rank))
        for rank, joined_rank in joined.items()
    ]
    return views, list(dict.fromkeys(gaps))


def _counts_before(found: _Reported, before: _Reported, gaps: list[Gap]) -> bool:
    """Whether a node's word on a rank counts more than the earlier one; an open case is a gap."""
    view, known = found.view, before.view
    if bool(view.unheard_for_s) is bool(known.unheard_for_s):
        here, there = (known.host, known.pid), (view.host, view.pid)
        if None not in (view.pid, known.pid) and not view.unheard_for_s and here != there:
            why = (
                f"pid {view.pid} on {view.host or 'an unnamed host'} says that it is this rank, "
                f"and so does pid {known.pid} on {known.host or 'an unnamed host'} in "
                f"{before.node.source}, which counts"
            )
            gaps.append(Gap(f"rank {view.rank} in {found.node.source}", view.rank, why, "rank"))
        return known.pid is None and view.pid is not None
    lost, seen = (found, before) if view.unheard_for_s else (before, found)
    comparable = seen.node.clock == lost.node.clock
    if lost.lost_ns and not comparable:
        gaps.append(_unknown_clocks(found.node.source, before.node.source))
    since = comparable and seen.node.case.taken_ns > lost.lost_ns + LAST_WORD_NS
    return (seen if since or not lost.lost_ns else lost) is found


def _unknown_clocks(source: str, other: str) -> Gap:
    return Gap(
        f"order of what {min(source, other)} and {max(source, other)} saw",
        None,
        "their clocks are not known against each other",
        "time",
        "start all nodes with hangcheck run and let them meet: one then says what came first",
    )


def _silent_nodes(cases: Sequence[Case], views: Iterable[RankView]) -> tuple[SilentNode, ...]:
    """Nodes that nobody heard from, as described by the node that knows most, then newest."""
    unheard = {view.rank for view in views if view.unheard_for_s}
    known: dict[int, SilentNode] = {}
    for node in (silent for case in cases for silent in case.run.silent_nodes):
        before = known.get(node.number)
        better = before is None or (before.reach == "unknown" and node.reach != "unknown")
        if better and unheard.intersection(parse_ranks(node.ranks)):
            known[node.number] = node
    return tuple(known[number] for number in sorted(known))


# Connections between nodes. Each node reports both ends of its processes' connections: the own end
# of one is the remote end of the other, so no address is looked up.


def _with_remote_ends(views: Sequence[RankView]) -> list[RankView]:
    ends: dict[Connection, list[tuple[str, int]]] = {}
    for view in views:
        for look in view.processes:
            kernels = (sample.kernel for sample in reversed(look.samples))
            newest = next((kernel for kernel in kernels if kernel is not None), None)
            for connection in newest.connections if newest is not None else ():
                ends.setdefault(Connection(connection.remote, connection.own), []).append(
                    (view.host, look.pid)
                )

    def with_ends(view: RankView) -> RankView:
        def of_target(target: WaitTarget) -> WaitTarget:
            there = ends.get(Connection(target.own_end, target.name), ()) if target.own_end else ()
            if not there or target.holders:
                return target
            here = view.host
            holders = tuple(Holder(pid=pid, host="" if on == here else on) for on, pid in there)
            return replace(target, holders=holders)

        def of_sample(sample: Sample) -> Sample:
            if sample.kernel is None:
                return sample
            threads = tuple(
                replace(thread, waits_for=tuple(map(of_target, thread.waits_for)))
                for thread in sample.kernel.threads
            )
            return replace(sample, kernel=replace(sample.kernel, threads=threads))

        looks = (
            replace(process, samples=tuple(map(of_sample, process.samples)))
            for process in view.processes
        )
        return replace(view, processes=tuple(looks))

    return list(map(with_ends, views)) if ends else list(views)
