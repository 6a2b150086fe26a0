"""Ranks in equal standing, so that thousands of them are a handful of groups at any world size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.model.verdict import RankState
from lightning_hangcheck.report.verdict_text.rank_rows import (
    Place,
    Situation,
    edges_by_source,
    name_ranks,
    situations,
)
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.verdict import Verdict


class EqualRanks(Struct, frozen=True, kw_only=True):
    """Ranks of which the verdict says the same.

    Attributes:
        situation: What they have in common.
        ranks: Ascending.
        example: The table's row of one of them.
    """

    situation: Situation
    ranks: tuple[int, ...]
    example: RankState

    @property
    def name(self) -> str:
        """For example ``ranks 0-6``."""
        return name_ranks(self.ranks)

    @property
    def state(self) -> str:
        """For example ``waits`` or ``are stuck``."""
        return self.situation.state[len(self.ranks) > 1]

    @property
    def standing(self) -> str:
        """Where they stand, in few words."""
        place = self.situation.place
        where = f"{place.function} {place.line}".strip()
        return where or self.situation.doing or self.situation.phase


def waiting_alike(groups: Sequence[EqualRanks]) -> tuple[EqualRanks, ...]:
    """Merge groups that wait for the same and differ only in where they stand."""
    merged: dict[Situation, list[EqualRanks]] = {}
    for group in groups:
        merged.setdefault(group.situation._replace(place=Place(), phase=""), []).append(group)
    return tuple(
        EqualRanks(
            situation=several[0].situation if len(several) == 1 else situation,
            ranks=tuple(sorted(rank for group in several for rank in group.ranks)),
            example=several[0].example,
        )
        for situation, several in merged.items()
    )


def equal_ranks(verdict: Verdict) -> tuple[EqualRanks, ...]:
    """Group all ranks, culprits first.

    Above 1,024 ranks a verdict's table has only culprits and one rank of each stack group; the
    others stand where that one stands.
    """
    tabled = {state.rank for state in verdict.ranks}
    untabled = {
        group.id: [rank for rank in parse_ranks(group.ranks) if rank not in tabled]
        for group in verdict.stack_groups
        if group.process == "rank"
    }
    groups = []
    for situation, states in situations(verdict, edges_by_source(verdict)):
        ranks = {state.rank for state in states}
        if not situation.is_culprit:
            for state in states:
                if state.stack_group is not None:
                    ranks.update(untabled.pop(state.stack_group, ()))
        groups.append(
            EqualRanks(situation=situation, ranks=tuple(sorted(ranks)), example=states[0])
        )
    return tuple(groups)
