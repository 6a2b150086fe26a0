"""How the whole job, or a round of it, ended: what the other nodes told before they went. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.nodes.folding import within
from lightning_hangcheck.nodes.heard import of_round
from lightning_hangcheck.watch.other_nodes.joining import join_heard
from lightning_hangcheck.watch.other_nodes.silent_nodes import silent_node

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.nodes.heard import Heard


def first_failure_ns(own: Case) -> int:
    """Return when the first rank here was seen to have failed, 0 if none did."""
    from lightning_hangcheck.diagnosis.process_exit import failed  # 20 MB, only at the end

    ends = (view.process_exit for view in own.ranks if failed(view))
    return min((one.seen_ns for one in ends if one is not None), default=0)


def have_said(heard: Mapping[int, Heard], since_ns: int) -> set[int]:
    """Return the nodes that told how their ranks ended, or were heard since that failure at all."""
    return {
        node
        for node, one in heard.items()
        if one.state.ended or one.heard_ns > since_ns or _tells_an_end(one)
    }


def _tells_an_end(heard: Heard) -> bool:
    ends = [one for one in heard.folds if one.told.view.process_exit is not None]
    told = any(view.process_exit is not None for view in heard.views)
    return told or bool(within(ends, heard.state.folded))


def told_and_gone(
    heard: Mapping[int, Heard], said: Collection[int]
) -> tuple[list[Heard], list[Heard]]:
    """Return who told of the end, and who was lost.

    A node that has told nothing since a rank failed here is gone, if others have; else it is the
    place where they meet that went first, and nothing is known of any.

    Args:
        heard: What nodes told last.
        said: Those of them that were heard since.
    """
    told = [one for node, one in heard.items() if node in said]
    gone = [one for node, one in heard.items() if node not in said]
    return ([], []) if not told and len(gone) > 1 else (told, gone)


def join_end(own: Case, told: Sequence[Heard], gone: Sequence[Heard], number: int) -> Case:
    """Return how the job ended on all nodes that told it.

    Args:
        own: How it ended here.
        told: What those told that were heard since a rank failed here.
        gone: What others told last: they were lost.
        number: Of this node.
    """
    if not told and not gone:
        return own
    joined = join_heard(own, told, gone, number)
    silent = tuple(silent_node(one, own.taken_ns, (), ()) for one in gone)
    run = replace(own.run, world_size=joined.run.world_size, silent_nodes=silent)
    return replace(joined, run=run, ended=True, limits=own.limits)


def join_round_end(
    own: Case, heard: Mapping[int, Heard], place: NodePlace, *, over: bool
) -> Case | None:
    """Return how a round ended on all nodes, which have begun another one or are about to.

    Args:
        own: How it ended here.
        heard: What nodes told last.
        place: Which of them this one is.
        over: Those are waited for no longer that have not told it yet.

    Returns:
        None while one has not.
    """
    found = {node: of_round(one, own.run.round) for node, one in heard.items()}
    there = {node: one for node, one in found.items() if one is not None}
    told_it = {node for node, one in there.items() if one.state.ended or _tells_an_end(one)}
    if not over and len(told_it) < place.nnodes - 1:
        return None
    ends = (view.process_exit.seen_ns for view in own.ranks if view.process_exit is not None)
    since_ns = first_failure_ns(own) or min(ends, default=own.taken_ns)
    said = told_it | have_said(there, since_ns)
    return join_end(own, *told_and_gone(there, said), place.number)
