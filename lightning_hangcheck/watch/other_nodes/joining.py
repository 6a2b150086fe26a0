"""What other nodes tell becomes part of the case of this one. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.gather.case_building import ELSEWHERE
from lightning_hangcheck.gather.node_clocks import NodeCase
from lightning_hangcheck.gather.node_merge import merge_cases
from lightning_hangcheck.gather.rank_set import members
from lightning_hangcheck.model.case import Case, RunFacts
from lightning_hangcheck.nodes.digest import TAKEN_NS
from lightning_hangcheck.nodes.folding import alike_of, brief, first_view, within
from lightning_hangcheck.nodes.heard import folds_heard
from lightning_hangcheck.text.moments import NANOSECONDS, read_utc, utc

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.model.case import SilentNode
    from lightning_hangcheck.model.evidence import Gap
    from lightning_hangcheck.nodes.heard import Heard


def join_heard(
    own: Case, heard: Iterable[Heard], silent: Iterable[Heard] = (), number: int = 0
) -> Case:
    """Return the case of this node with the ranks of others.

    Args:
        own: Case of the ranks of this node.
        heard: What those told that are not silent; what is of another round is left out.
        silent: What those told last that are.
        number: Of this node.
    """
    started = own.run.local_world_size is not None
    theirs = [one for one in heard if started and _belongs(one, own)]
    gone = [one for one in silent if _belongs(one, own)]
    cases = [_case_of(one, own) for one in theirs if one.views or not one.state.folded]
    cases += _of_folds(theirs, own)
    cases += [_unheard(_case_of(one, own), one, own) for one in gone]
    return (
        merge_cases([NodeCase(f"node {number}", own, 0.0), *cases], own.run.run_id)
        if cases
        else own
    )


def with_unheard(
    own: Case,
    joined: Case,
    absent: tuple[int, ...],
    silent: tuple[SilentNode, ...],
    gaps: Sequence[Gap],
) -> Case:
    """Return the joined case with what is not heard of other nodes.

    Args:
        own: Case of the ranks of this node.
        joined: The same with the ranks of others.
        absent: Nodes of which nobody has heard anything for too long.
        silent: Nodes that are no longer heard.
        gaps: What is to be said of both.
    """
    return replace(
        joined,
        gaps=(*(gap for gap in joined.gaps if not gaps or gap.why != ELSEWHERE), *gaps),
        run=replace(_run_facts(own.run, joined.run), absent_nodes=absent, silent_nodes=silent),
    )


def _belongs(heard: Heard, own: Case) -> bool:
    """Whether a launcher has numbered its ranks, and they are of the round that we see."""
    state = heard.state
    return state.local_world_size is not None and state.round == own.run.round


def _case_of(heard: Heard, own: Case) -> NodeCase:
    """What another node told, as its case would be: on our clocks, of our command."""
    state = heard.state
    age_s = max(0.0, (own.taken_ns - heard.heard_ns) / NANOSECONDS)
    told = Case(
        run=RunFacts(
            run_id=own.run.run_id,
            command=own.run.command,
            started_at=own.run.started_at,
            world_size=state.world_size or own.run.world_size,
            nnodes=own.run.nnodes,
            local_world_size=state.local_world_size,
            machine=state.machine,
        ),
        taken_at=utc(read_utc(own.taken_at) - timedelta(seconds=age_s)),
        taken_ns=TAKEN_NS,
        ranks=heard.views,
        gaps=state.gaps,
        code=state.code,
        limits=own.limits,
    )
    return NodeCase(f"node {state.node}", told, 0.0)


def _of_folds(heard: Sequence[Heard], own: Case) -> list[NodeCase]:
    """What is told of ranks that stand alike, on whichever of these nodes, as one node's case."""
    folds = within(folds_heard(heard), (0, own.run.world_size - 1))
    if not folds:
        return []
    sizes = [one.state.local_world_size or 0 for one in heard if one.state.folded and not one.views]
    sources = {id(one.source): one.source for one in heard}.values()
    told = Case(
        run=replace(own.run, local_world_size=sum(sizes), machine=""),
        taken_at=own.taken_at,
        taken_ns=TAKEN_NS,
        ranks=tuple(map(first_view, folds)),
        gaps=tuple(dict.fromkeys(gap for source in sources for gap in source.gaps)),
        code=tuple(dict.fromkeys(note for source in sources for note in source.code)),
        limits=own.limits,
        alike=tuple(map(alike_of, folds)),
    )
    return [NodeCase("other nodes", told, 0.0)]


def _unheard(told: NodeCase, heard: Heard, own: Case) -> NodeCase:
    """Of a silent node only who its ranks are, and how far they were: all else may have changed."""
    unheard_s = (own.taken_ns - heard.heard_ns) / NANOSECONDS
    here = (0, max(0, own.run.world_size - 1))
    folds = within(within(heard.folds, heard.state.folded), here)
    ranks = tuple(
        replace(brief(view), unheard_for_s=unheard_s, silent_for_s=view.silent_for_s + unheard_s)
        for view in (*told.case.ranks, *map(first_view, folds))
    )
    alike = tuple(map(alike_of, folds))
    return replace(told, case=replace(told.case, ranks=ranks, gaps=(), code=(), alike=alike))


def last_progress(heard: Iterable[Heard]) -> dict[int, int]:
    """Return when ranks of other nodes last showed progress, by our monotonic clock.

    Of ranks that stand alike, when the last of them did.

    Args:
        heard: What those told that are not silent.
    """
    theirs = list(heard)
    oldest_ns = min((one.heard_ns for one in theirs), default=0)
    alike = {
        rank: oldest_ns - int(fold.told.view.silent_for_s * NANOSECONDS)
        for fold in folds_heard(theirs)
        for rank in members(fold.ranks)
    }
    alone = {
        view.rank: one.heard_ns - int(view.silent_for_s * NANOSECONDS)
        for one in theirs
        for view in one.views
    }
    return {**alike, **alone}


def _run_facts(own: RunFacts, joined: RunFacts) -> RunFacts:
    return replace(
        own,
        world_size=joined.world_size,
        local_world_size=joined.local_world_size,
        nnodes=own.nnodes,
    )
