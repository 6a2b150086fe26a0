"""Cases of several nodes become one. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck.gather.case_building import build_case
from lightning_hangcheck.gather.node_clocks import NodeCase, TimedCase, on_one_clock
from lightning_hangcheck.gather.remote_ends import with_remote_ends
from lightning_hangcheck.model.case import Case, Limits, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from lightning_hangcheck.model.case import SilentNode

LAST_WORD_NS = 5 * NANOSECONDS
"""What a lost host saved about when it was heard last is from before it was lost."""


def merge_cases(nodes: Sequence[NodeCase], run_id: str) -> Case:
    """Join the cases of several nodes into one.

    Each node's monotonic times are moved to one clock (`node_clocks`). How long a rank was silent
    stays as it was seen on its node. Where two nodes contradict each other, a gap says so and the
    newer one counts, as far as that is known. Which of two ends came first is open where clocks
    are not known against each other: it blames nobody then. Hosts of one name get one of
    their own each, ``localhost(node-1)``: process 17 of one is not that of the other.

    Args:
        nodes: At least one.
        run_id: Of the merged run.
    """
    ordered = on_one_clock(_told_apart(nodes))
    newest = ordered[0].case
    views, gaps = _join_ranks(ordered)
    cases = [node.case for node in ordered]
    told = [gap for case in cases for gap in case.gaps if gap.kind != "other_nodes"]
    return build_case(
        run=replace(_run_facts(cases, run_id), silent_nodes=_silent_nodes(cases, views)),
        ranks=with_remote_ends(views),
        gaps=(*dict.fromkeys(told), *gaps, *_differences(ordered)),
        code=tuple(dict.fromkeys(note for case in cases for note in case.code)),
        limits=_most_patient([case.limits for case in cases]),
        taken_at=newest.taken_at,
        taken_ns=newest.taken_ns,
        ended=all(case.ended for case in cases),
        exit_code=next((case.exit_code for case in cases if case.exit_code), newest.exit_code),
        alike=tuple(one for case in cases for one in case.alike),
    )


def _told_apart(nodes: Sequence[NodeCase]) -> list[NodeCase]:
    """Give each of several machines that have one host name a name of its own."""
    called: dict[tuple[str, str], str] = {}
    for node in nodes:
        for host in {view.host for view in node.case.ranks if view.host and node.case.run.machine}:
            called.setdefault((host, node.case.run.machine), node.source)
    shared = {host for host, count in Counter(host for host, _ in called).items() if count > 1}
    return [_renamed(node, shared, called) for node in nodes] if shared else list(nodes)


def _renamed(
    node: NodeCase, shared: Collection[str], called: Mapping[tuple[str, str], str]
) -> NodeCase:
    def own_name(host: str) -> str:
        source = called.get((host, node.case.run.machine))
        return f"{host}({source.replace(' ', '-')})" if host in shared and source else host

    ranks = tuple(replace(view, host=own_name(view.host)) for view in node.case.ranks)
    return replace(node, case=replace(node.case, ranks=ranks))


class _Told(NamedTuple):
    """What one node's case says of a rank.

    Attributes:
        lost_ns: Moment from which on nothing was acknowledged there; 0 where nobody says so.
        taken_ns: When it was said.
        clock: Moments by another one do not compare.
    """

    source: str
    view: RankView
    lost_ns: int
    taken_ns: int
    clock: int


def _join_ranks(nodes: Sequence[TimedCase]) -> tuple[list[RankView], list[Gap]]:
    """Join ranks, the newest case first.

    A rank that was not there, or that its node's silence hid, gives way to one that was seen; but
    not to one that was seen before its host was lost, or nobody knows when.
    """
    joined: dict[int, _Told] = {}
    gaps: list[Gap] = []
    for node in nodes:
        for told in _told(node):
            view, before = told.view, joined.get(told.view.rank)
            if before is not None and _is_open(told, before):
                gaps.append(_unknown_clocks(told.source, before.source))
            if before is None or _shows_more(told, before):
                joined[view.rank] = told
            elif view.pid is not None and not view.unheard_for_s and before.view.pid is not None:
                known = before.view
                if (known.host, known.pid) != (view.host, view.pid):
                    gaps.append(_contradiction(before.source, known, told.source, view))
    return _ended_in_order(list(joined.values()), gaps), list(dict.fromkeys(gaps))


def _told(node: TimedCase) -> Iterator[_Told]:
    case, lost = node.case, dict[int, int]()
    for silent in case.run.silent_nodes:
        if silent.reach == "unanswered":
            since_ns = case.taken_ns - int(silent.silent_s * NANOSECONDS)
            lost.update(dict.fromkeys(parse_ranks(silent.ranks), since_ns))
    for view in case.ranks:
        yield _Told(node.source, view, lost.get(view.rank, 0), case.taken_ns, node.clock)


def _is_open(told: _Told, before: _Told) -> bool:
    """Whether a rank was seen, and said to be lost, and nobody knows what came first."""
    lost, seen = (told, before) if told.view.unheard_for_s else (before, told)
    unlike = bool(lost.view.unheard_for_s) and not seen.view.unheard_for_s
    return unlike and bool(lost.lost_ns) and seen.clock != lost.clock


def _shows_more(told: _Told, before: _Told) -> bool:
    view, known = told.view, before.view
    if bool(view.unheard_for_s) != bool(known.unheard_for_s):
        lost, seen = (told, before) if view.unheard_for_s else (before, told)
        since = seen.clock == lost.clock and seen.taken_ns > lost.lost_ns + LAST_WORD_NS
        return (seen if since or not lost.lost_ns else lost) is told
    return known.pid is None and view.pid is not None


def _silent_nodes(cases: Sequence[Case], views: Iterable[RankView]) -> tuple[SilentNode, ...]:
    """Nodes that those of the others did not hear, and of which nothing else is known either.

    Of one that several name: as the one says it that knows most of why, then the newest.
    """
    unheard = {view.rank for view in views if view.unheard_for_s}
    known: dict[int, SilentNode] = {}
    for node in (one for case in cases for one in case.run.silent_nodes):
        before = known.get(node.number)
        better = before is None or (before.reach == "unknown" and node.reach != "unknown")
        if better and unheard.intersection(parse_ranks(node.ranks)):
            known[node.number] = node
    return tuple(known[number] for number in sorted(known))


def _ended_in_order(told: Sequence[_Told], gaps: list[Gap]) -> list[RankView]:
    """Number the ends of processes through all nodes, by when each node saw them.

    Those by clocks that are not known against each other are told apart.
    """
    ends = sorted(
        (one.view.process_exit.seen_ns, one.view.process_exit.order, one.view.rank)
        for one in told
        if one.view.process_exit is not None
    )
    order = {rank: number for number, (_, _, rank) in enumerate(ends)}
    failed = {
        one.clock: one.source
        for one in told
        if one.view.process_exit is not None and one.view.process_exit.exit_code != 0
    }
    if len(failed) > 1:
        gaps.append(_unknown_clocks(*islice(failed.values(), 2)))
    return [_ended(one, order) if one.view.process_exit is not None else one.view for one in told]


def _ended(told: _Told, order: Mapping[int, int]) -> RankView:
    view, ended = told.view, told.view.process_exit
    if ended is None:
        return view
    return replace(view, process_exit=replace(ended, order=order[view.rank], clock=told.clock))


def _unknown_clocks(one: str, other: str) -> Gap:
    return Gap(
        f"order of what {min(one, other)} and {max(one, other)} saw",
        None,
        "their clocks are not known against each other",
        "time",
        "start all nodes with hangcheck run and let them meet, which estimates how far they differ",
    )


def _contradiction(source: str, known: RankView, other: str, view: RankView) -> Gap:
    return Gap(
        kind="rank",
        what=f"rank {view.rank} in {other}",
        rank=view.rank,
        why=f"pid {view.pid} on {view.host or 'an unnamed host'} says that it is this rank, and so "
        f"does pid {known.pid} on {known.host or 'an unnamed host'} in {source}, which counts",
    )


def _run_facts(cases: Sequence[Case], run_id: str) -> RunFacts:
    """Facts of the whole run; how many ranks run on these nodes is known if each node says so.

    Ranks that several nodes tell of, as those of one that none of them hears, count once.
    """
    local = {
        frozenset(view.host for view in case.ranks if view.host): case for case in reversed(cases)
    }
    known = [case.run.local_world_size for case in local.values()]
    sizes = [size for size in known if size is not None]
    told = [view.rank for case in local.values() for view in case.ranks]
    again = len(told) - len(set(told))
    return RunFacts(
        run_id=run_id,
        command=cases[0].run.command,
        started_at=min(case.run.started_at for case in cases),
        world_size=max(case.run.world_size for case in cases),
        nnodes=max([len(local), *(case.run.nnodes for case in cases)]),
        local_world_size=sum(sizes) - again if len(sizes) == len(local) else None,
    )


def _most_patient(limits: Sequence[Limits]) -> Limits:
    merged = limits[0]
    for other in limits[1:]:
        merged = replace(
            merged,
            **{
                name: max(getattr(merged, name), getattr(other, name))
                for name in merged.__struct_fields__
            },
        )
    return merged


def _differences(nodes: Sequence[TimedCase]) -> Iterable[Gap]:
    """What does not look like one job."""
    first = nodes[0]
    for node in nodes[1:]:
        for what in ("command", "world_size"):
            here, there = getattr(first.case.run, what), getattr(node.case.run, what)
            if here != there:
                yield Gap(
                    kind="job_facts",
                    what=f"{what.replace('_', ' ')} of {node.source}",
                    rank=None,
                    why=f"it is {there!r}, in {first.source} {here!r}; are these nodes of one job?",
                )
