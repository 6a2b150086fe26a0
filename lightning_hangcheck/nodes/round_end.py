"""How a round ended: what a node tells of its ranks, and what who judges makes of it. Pure.

The next round of a node may have begun before another has read how the last one ended there, so it
is told beside the present one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from lightning_hangcheck.model.case import RankView
from lightning_hangcheck.model.run import Round
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.nodes.bounds import ENDS, MOST_ENDS
from lightning_hangcheck.nodes.folding import FOLDED_ABOVE, brief

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case

FEW_ENDS = 2
"""Ranks of a node of a large job whose end is told."""


class LeftRound(Struct, frozen=True, omit_defaults=True):
    """The round of a node that ended last.

    Attributes:
        number: Of it.
        ranks: Those that ended first, without what looks brought.
    """

    number: int
    world_size: int = 0
    local_world_size: int | None = None
    ranks: Annotated[tuple[RankView, ...], ENDS] = ()


class RoundEnd(Struct, frozen=True):
    """How a round ended on all nodes, as the node that judges has it.

    Attributes:
        round: As it is remembered.
        verdict: As it is told.
    """

    round: Round
    verdict: Verdict


def left_round(case: Case) -> LeftRound:
    """Return what other nodes are to know of a round that has ended here.

    Args:
        case: Of its ranks on this node.
    """
    ended = [view for view in case.ranks if view.process_exit is not None]
    ended.sort(key=lambda view: view.process_exit.order if view.process_exit is not None else 0)
    most = MOST_ENDS if case.run.world_size <= FOLDED_ABOVE else FEW_ENDS
    ranks = tuple(brief(view) for view in ended[:most])
    return LeftRound(case.run.round, case.run.world_size, case.run.local_world_size, ranks)
