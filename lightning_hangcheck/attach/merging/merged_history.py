"""What the records of several nodes say of their clocks and rounds, for `hangcheck merge`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.run import Round

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.judge.joining import NodeCase
    from lightning_hangcheck.model.run import RunRecord

FIRST = 0
CLOSE_S = 2.0
"""An estimate that may be further off orders nothing that a job does."""


def known_clocks(records: Sequence[RunRecord]) -> dict[int, float]:
    """Return how far the wall clocks of nodes are ahead of the first one's, by their number.

    Args:
        records: Of the nodes. The first one has estimated it; where several were that after each
            other, nobody knows which numbers the figures are of.
    """
    estimating = [one for one in records if one.clocks]
    if len(estimating) != 1 or estimating[0].node != FIRST:
        return {}
    found = {one.node: one.ahead_s for one in estimating[0].clocks if one.within_s <= CLOSE_S}
    return {FIRST: 0.0, **found}


def of_newest_round(
    nodes: Sequence[NodeCase],
    records: Mapping[str, RunRecord | None],
    rounds: Sequence[Round],
) -> tuple[list[NodeCase], list[Gap]]:
    """Leave out evidence from before the newest round began: ranks of two rounds are never mixed.

    Args:
        nodes: What each saw last.
        records: What each wrote of its run, by its folder.
        rounds: Of all nodes.

    Returns:
        The others, and a gap for each that was left out.
    """
    newest = rounds[-1] if rounds else Round()
    before = [node for node in nodes if _is_before(node, nodes, records[node.source], newest)]
    present = [node for node in nodes if node not in before]
    if not present:
        return list(nodes), []
    return present, [
        Gap(
            f"run folder {node.source}",
            None,
            f"its evidence is of round {node.case.run.round}, and round {newest.number} has begun "
            "since: it counts as history only",
            "saved_evidence",
        )
        for node in before
    ]


def _is_before(
    node: NodeCase, nodes: Sequence[NodeCase], record: RunRecord | None, newest: Round
) -> bool:
    """Whether what a node saw last is of an earlier round, whatever its clock says.

    Its own clock tells where it was in the newest round, too. Else its number does, if nodes that
    met gave it; of others, which may count their rounds otherwise, that all its ranks have gone on
    to other nodes, or that there are no such ranks any more.
    """
    if node.case.run.round >= newest.number:
        return False
    own = {one.number: one for one in record.rounds} if record is not None else {}
    if newest.number in own:
        return node.case.taken_at < own[newest.number].started_at
    if record is not None and record.meeting:
        return True
    later = [one.case for one in nodes if one.case.run.round > node.case.run.round]
    elsewhere = {view.rank for case in later for view in case.ranks if view.pid is not None}
    world_size = max((case.run.world_size for case in later), default=0)
    ours = [view.rank for view in node.case.ranks if view.pid is not None]
    return bool(later) and all(rank in elsewhere or rank >= world_size for rank in ours)
