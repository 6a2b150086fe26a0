"""The stack of one rank, as the newest verdict has it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import plain
from lightning_hangcheck.text.amounts import several
from lightning_hangcheck.text.rank_ranges import parse_ranks

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import StackGroup, Verdict


def stack_lines(verdict: Verdict | None, rank: int) -> list[str]:
    """Write the stack of a rank, outermost first, or say why there is none.

    Args:
        verdict: The newest.
        rank: Whose.
    """
    group = None if verdict is None else _group_of(verdict, rank)
    if group is None:
        return [f"rank {rank}: no stack was taken yet; a suspicion takes one"]
    alike = f", as {several(group.count - 1, 'other')}" if group.count > 1 else ""
    return [f"rank {rank}{alike}:", *(f"  {plain(frame)}" for frame in group.frames)]


def _group_of(verdict: Verdict, rank: int) -> StackGroup | None:
    of_ranks = (group for group in verdict.stack_groups if group.process == "rank")
    return next((group for group in of_ranks if rank in parse_ranks(group.ranks)), None)
