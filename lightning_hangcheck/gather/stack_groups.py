"""Equal stacks, merged: thousands of ranks stand in a handful of places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lightning_hangcheck.model.verdict import StackGroup
from lightning_hangcheck.text.rank_ranges import format_ranks, parse_ranks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.evidence import Frame, ProcessLook

Grouped = Literal["rank", "worker"]
Frames = tuple["Frame", ...]


def group_stacks(case: Case) -> tuple[tuple[StackGroup, ...], Mapping[int, int]]:
    """Merge the newest main-thread stacks of ranks and of their workers.

    Stacks are equal if function, file and line of every frame are.

    Args:
        case: A rank that was seen twice counts by its first view.

    Returns:
        The groups, largest first, numbered from 0; and each rank's group, where its stack is known.
    """
    members: dict[tuple[Grouped, Frames], list[int]] = {}
    alike = {one.rank: parse_ranks(one.ranks) for one in case.alike}
    seen: set[int] = set()
    for view in case.ranks:
        if view.rank in seen:
            continue
        seen.add(view.rank)
        for look in view.processes:
            frames = latest_frames(look)
            if frames and look.role != "child":
                process: Grouped = "rank" if look.role == "rank" else "worker"
                standing = alike.get(view.rank, (view.rank,))
                members.setdefault((process, frames), []).extend(standing)
    ordered = sorted(members.items(), key=_largest_first)
    groups = tuple(
        _group(number, process, ranks, frames)
        for number, ((process, frames), ranks) in enumerate(ordered)
    )
    numbers = {
        rank: number
        for number, ((process, _), ranks) in enumerate(ordered)
        for rank in ranks
        if process == "rank"
    }
    return groups, numbers


def latest_frames(look: ProcessLook) -> Frames:
    """Return a process's newest main-thread frames, outermost first; empty if none were taken."""
    for sample in reversed(look.samples):
        if sample.stack is not None and sample.stack.threads:
            return sample.stack.threads[0].frames
    return ()


def _group(number: int, process: Grouped, ranks: Sequence[int], frames: Frames) -> StackGroup:
    return StackGroup(
        id=number,
        process=process,
        ranks=format_ranks(ranks),
        count=len(ranks),
        frames=tuple(str(frame) for frame in frames),
    )


def _largest_first(
    item: tuple[tuple[Grouped, Frames], list[int]],
) -> tuple[int, Grouped, int]:
    (process, _), ranks = item
    return -len(ranks), process, min(ranks)
