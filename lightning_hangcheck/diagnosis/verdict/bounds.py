"""Keeps a verdict small at any world size: what a reader cannot use is counted, not listed. Pure.

Whoever opens it wants the culprits, examples of all others, and what was left out. Each list has a
most; where the whole is still too large, the largest list is halved until it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from lightning_hangcheck.model.codec import encode, encode_pretty
from lightning_hangcheck.model.verdict import (
    MOST_LISTED,
    CollectiveState,
    Edge,
    Gap,
    StackGroup,
    Verdict,
)
from lightning_hangcheck.reading.wording import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_BYTES = 250_000
"""Of its file: indented, but that of up to `MOST_LISTED` ranks, which may need a single line."""
MOST = {
    "culprits": MOST_LISTED,
    "victims": MOST_LISTED,
    "evidence": 128,
    "gaps": 128,
    "wait_for": MOST_LISTED,
    "ranks": MOST_LISTED,
    "stack_groups": 64,
    "collectives": 64,
}
OF_MANY = {**MOST, "wait_for": 512, "ranks": 256}
"""Above `MOST_LISTED` ranks, of which not every one has a row."""
MOST_RANGES = 256
"""Ranges of ranks in one text: about 2 kB."""
TOLD = {"wait_for": "edges", "ranks": "rows of ranks", "stack_groups": "groups of equal stacks"}
SMALL = "left out: this file stays small at any world size"


def bounded(verdict: Verdict) -> Verdict:
    """Return a verdict of at most `MOST_BYTES`; a gap tells of each list what was left out."""
    many = verdict.world_size > MOST_LISTED
    most, written = dict(OF_MANY if many else MOST), encode_pretty if many else encode
    while True:
        found = _cut(verdict, most)
        size = len(written(found))
        if size <= MOST_BYTES or max(most.values()) == 1:
            return found
        sizes = {name: len(encode(getattr(found, name))) for name in most}
        largest = max((name for name in most if most[name] > 1), key=sizes.__getitem__)
        most[largest] = max(1, min(most[largest], len(getattr(found, largest))) // 2)


def _cut(verdict: Verdict, most: dict[str, int]) -> Verdict:
    kept: dict[str, Any] = {}
    gaps: list[Gap] = []
    for name, limit in most.items():
        every: Sequence[Any] = getattr(verdict, name)
        if len(every) > limit:
            chosen: Callable[..., Sequence[Any]] = CHOSEN.get(name, _first)
            kept[name] = tuple(chosen(verdict, every, limit))
            gaps.append(_left_out(name, every, limit))
    groups = kept.get("stack_groups", verdict.stack_groups)
    states = kept.get("collectives", verdict.collectives)
    kept["stack_groups"] = tuple(_short_group(one) for one in groups)
    kept["collectives"] = tuple(_short_state(one) for one in states)
    if any(map(_is_long, groups)):
        gaps.append(
            Gap("ranks of groups of equal stacks", None, f"after {MOST_RANGES} ranges {SMALL}")
        )
    return replace(verdict, **kept, gaps=(*gaps, *kept.get("gaps", verdict.gaps)))


def _left_out(name: str, every: Sequence[Any], limit: int) -> Gap:
    what = f"{len(every) - limit:,} of {len(every):,} {TOLD.get(name, name)}"
    who = f"; all of them: {name_ranks(every)}" if name in ("culprits", "victims") else ""
    return Gap(what, None, f"{SMALL}{who}")


def _first(_: Verdict, every: Sequence[Any], limit: int) -> Sequence[Any]:
    return every[:limit]


def _edges(_: Verdict, every: Sequence[Edge], limit: int) -> Sequence[Edge]:
    """For whom others wait is told before who waits: one edge to each, then the first of all."""
    to_each = {edge.target: edge for edge in reversed(every)}
    first = list(dict.fromkeys([*reversed(to_each.values()), *every[:limit]]))
    return first[:limit]


def _rows(verdict: Verdict, every: Sequence[Any], limit: int) -> Sequence[Any]:
    """One of each group of equal stacks and the culprits before all others."""
    examples = {row.stack_group: row.rank for row in reversed(every)}.values()
    wanted = {*verdict.culprits[: limit // 2], *examples}
    kept = {row.rank for row in [*(one for one in every if one.rank in wanted), *every][:limit]}
    return [row for row in every if row.rank in kept]


CHOSEN: dict[str, Callable[..., Sequence[Any]]] = {"wait_for": _edges, "ranks": _rows}


def _short(ranks: str) -> str:
    return ",".join(ranks.split(",")[:MOST_RANGES])


def _is_long(group: StackGroup) -> bool:
    return group.ranks.count(",") >= MOST_RANGES


def _short_group(group: StackGroup) -> StackGroup:
    return replace(group, ranks=_short(group.ranks)) if _is_long(group) else group


def _short_state(state: CollectiveState) -> CollectiveState:
    ops = {operation: _short(ranks) for operation, ranks in state.ops.items()}
    return replace(state, ranks=_short(state.ranks), ops=ops)
