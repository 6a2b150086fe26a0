"""Evidence of a large job's nodes, read one after the other: of ranks that stand alike one is kept.

So merging a thousand folders takes the memory of the ways in which their ranks stand. Only where
all nodes tell of one standing job: what ended, was lost, or contradicts is joined rank by rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.judge.alike import without_members
from lightning_hangcheck.judge.joining import NodeCase, rebased
from lightning_hangcheck.judge.standing import standings_of
from lightning_hangcheck.nodes.classes import (
    FOLDED_ABOVE,
    RankClass,
    RankLine,
    alike_of,
    bounded,
    class_of,
    first_view,
    together,
    without_evidence,
)
from lightning_hangcheck.nodes.word import MOST_CODE, MOST_GAPS, TAKEN_NS

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, CodeNote, RankView
    from lightning_hangcheck.model.evidence import Gap

    Way = tuple[object, ...]


class FoldedNodes:
    """The nodes that were taken so far."""

    def __init__(self) -> None:
        self._first: NodeCase | None = None
        self._seen: set[int] = set()
        self._sizes: list[int] = []
        self._folds: list[RankClass] = []
        self._best: dict[Way, tuple[RankClass, int]] = {}
        self._alone: list[NodeCase] = []
        self._gaps: dict[Gap, None] = {}
        self._code: dict[CodeNote, None] = {}

    @property
    def empty(self) -> bool:
        """Whether none was taken."""
        return not self._sizes

    def take(self, node: NodeCase) -> bool:
        """Take one in, and say whether it, and so all, can be joined this way."""
        first = self._first = self._first or node
        case, size = node.case, node.case.run.local_world_size
        if size is None or not _is_of_one_standing_job(case, first.case):
            return False
        ranks = {view.rank for view in case.ranks}
        if len(ranks) != len(case.ranks) or ranks & self._seen:
            return False
        self._seen |= ranks
        self._sizes.append(size)
        pairs = list(zip(case.ranks, standings_of(case.ranks, case.taken_ns), strict=True))
        for view, standing in pairs:
            if standing:
                self._fold(view, standing, TAKEN_NS - case.taken_ns)
        alone = [view for view, standing in pairs if not standing]
        self._gaps |= dict.fromkeys(gap for gap in case.gaps if gap.kind != "other_nodes")
        self._code |= dict.fromkeys(case.code)
        if alone:
            run = replace(case.run, local_world_size=len(alone))
            own = replace(case, run=run, ranks=tuple(alone), gaps=(), code=())
            self._alone.append(replace(node, case=own))
        return True

    def joined(self) -> list[NodeCase]:
        """Return the cases that say of all these nodes what they say of them."""
        if self._first is None:
            return []
        best = [replace(one, told=_moved(one.told, by_ns)) for one, by_ns in self._best.values()]
        folds, _ = bounded(together([*best, *self._folds]))
        case, alone = self._first.case, sum(len(one.case.ranks) for one in self._alone)
        told = replace(
            case,
            run=replace(case.run, local_world_size=sum(self._sizes) - alone, machine=""),
            taken_ns=TAKEN_NS,
            ranks=tuple(map(first_view, folds)),
            alike=tuple(map(alike_of, folds)),
            gaps=tuple(self._gaps)[:MOST_GAPS],
            code=tuple(self._code)[:MOST_CODE],
        )
        return [NodeCase(self._first.source, told), *self._alone]

    def _fold(self, view: RankView, standing: int, shift_ns: int) -> None:
        """Keep the evidence of the rank of its way that was silent for the shortest time."""
        bare, groups = without_members(view)
        way = standing, tuple(family.offsets for family in groups)
        mine, known = class_of(bare, groups, standing), self._best.get(way)
        kept = known is not None and _place(known[0]) <= _place(mine)
        if not kept:
            self._best[way] = mine, shift_ns
        other = mine if kept else known[0] if known is not None else None
        if other is not None:
            self._folds.append(without_evidence(other))


def _is_of_one_standing_job(case: Case, first: Case) -> bool:
    own, run = case.run, first.run
    same = (own.command, own.world_size, own.round) == (run.command, run.world_size, run.round)
    plain = not (case.ended or case.alike or own.silent_nodes or case.slowness or case.aftermath)
    ranks = all(
        view.pid is not None and view.process_exit is None and not view.unheard_for_s
        for view in case.ranks
    )
    return (
        same and plain and ranks and own.world_size > FOLDED_ABOVE and case.limits == first.limits
    )


def _place(fold: RankClass) -> tuple[float, int]:
    """As `together` chooses the view that stands for all."""
    return fold.told.view.silent_for_s, fold.told.view.rank


def _moved(told: RankLine, by_ns: int) -> RankLine:
    return replace(told, view=rebased(told.view, by_ns))
