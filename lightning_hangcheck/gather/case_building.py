"""Node evidence to one `Case`: ranks that were seen, ranks that should be there, and gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.case import Case, Limits, RankView, RunFacts
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.rank_ranges import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.case import Alike, CodeNote

ELSEWHERE = "they run on other nodes, or no launcher says where; only this node was looked at"


def build_case(
    *,
    run: RunFacts,
    ranks: Sequence[RankView],
    gaps: Sequence[Gap],
    limits: Limits,
    taken_at: str,
    taken_ns: int,
    ended: bool = False,
    exit_code: int | None = None,
    code: tuple[CodeNote, ...] = (),
    alike: tuple[Alike, ...] = (),
) -> Case:
    """Join what was seen of one node into the case that is judged and saved.

    A rank that the launcher promised for this node and that has no process joins as a `RankView`
    without a pid. Ranks of other nodes don't join at all: nothing is known of them, and one gap
    says so.

    Args:
        run: Facts of the run; a world size of 0 is replaced by the number of ranks seen.
        ranks: Ranks seen on this node, each once, in any order.
        gaps: What the probes could not see.
        limits: Patience in force.
        taken_at: ISO 8601 UTC.
        taken_ns: The same moment on the monotonic clock.
        ended: The launched command has ended.
        exit_code: Its exit code, where we are its parent.
        code: What the source says around the lines on which ranks stand.
        alike: For whom some of the ranks stand, too.
    """
    seen = {view.rank: view for view in ranks}
    known = {*seen, *(rank for one in alike for rank in parse_ranks(one.ranks))}
    facts = replace(run, world_size=max(run.world_size, len(known)))
    unseen = set(range(facts.world_size)) - known
    joined = list(seen.values())
    told = list(gaps)
    if unseen and _all_ranks_belong_here(facts):
        silence = max((view.silent_for_s for view in ranks), default=0.0)
        joined += [RankView(rank=rank, silent_for_s=silence, idle_for_s=silence) for rank in unseen]
    elif unseen:
        told.append(_unseen_ranks(unseen))
    return Case(
        run=facts,
        taken_at=taken_at,
        taken_ns=taken_ns,
        ranks=tuple(sorted(joined, key=lambda view: view.rank)),
        gaps=tuple(told),
        limits=limits,
        ended=ended,
        exit_code=exit_code,
        code=code,
        alike=alike,
    )


def _all_ranks_belong_here(run: RunFacts) -> bool:
    return run.local_world_size is not None and run.local_world_size >= run.world_size


def _unseen_ranks(ranks: set[int]) -> Gap:
    return Gap(f"ranks {format_ranks(ranks)}", None, ELSEWHERE, "other_nodes")
