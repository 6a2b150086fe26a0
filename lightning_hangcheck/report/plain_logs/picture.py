"""What the ends of all ranks mean together. Pure.

A log tells what was said, not what is: a rank that is silent may work. So nothing here is a
verdict; it says who said less than the others, and what to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.naming.phase_words import phase_of_name
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.report.plain_logs.rank_ends import Ends, RankEnd

ALL_IN_ONE: dict[Phase, str] = {
    "logger_init": (
        "every rank is at the logger: each creates one of its own, or its server does not answer. "
        "Let rank 0 alone create it (`hc.guarded_wandb_logger`), or set WANDB_MODE=disabled for "
        "rank != 0"
    ),
    "trainer_init": (
        "every rank is at the Trainer: they may wait for each other. Name the strategy "
        '(`strategy="ddp"` in place of `"auto"`), and set NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME '
        "where GPUs are used"
    ),
    "rendezvous": "every rank waits for the process group: count the ranks that were to come",
    "model_load": "every rank loads the model: a slow or locked cache, or no network",
}
"""By phase of the section in which all ranks are: the pictures that are known by name."""


def meanings(ends: Ends) -> list[str]:
    """Say what the logs mean, what matters most first; a sentence or two each.

    Args:
        ends: Of at least one rank, or with a queue or a sentence.
    """
    ranks = [end for end in ends.ranks if end.rank is not None]
    said = [
        *_raised(ends.ranks),
        *ends.sentences,
        *_missing(ranks, ends.world_size),
        *_queues(ends),
        *_behind(ranks),
        *_restarted(ends.restarted),
    ]
    return said or list(_alike(ends.ranks))


def _raised(ranks: Sequence[RankEnd]) -> Iterator[str]:
    failed = [end for end in ranks if end.raised]
    if failed:
        first = min(failed, key=lambda end: end.last.clock)
        yield (
            f"{_who(first)} raised {first.raised}: the others wait for it, or were ended "
            "because of it"
        )


def _missing(ranks: Sequence[RankEnd], world_size: int | None) -> Iterator[str]:
    missing = sorted(set(range(world_size or 0)) - {end.rank for end in ranks})
    if missing and ranks:
        yield (
            f"{name_ranks(missing)} of {world_size} wrote no line: not started, its log is not "
            "among these files, or it was told to be quiet (above 16 ranks only rank 0 and ranks "
            "in trouble speak)"
        )


def _queues(ends: Ends) -> Iterator[str]:
    """Who called fewer collectives than the others, by NCCL's own watchdog."""
    called = {
        rank: queue.enqueued for rank, queue in ends.queues.items() if queue.enqueued is not None
    }
    waiting = [
        (queue.waits_at, queue.operation) for queue in ends.queues.values() if queue.waits_at
    ]
    at, operation = min(waiting, default=(None, ""))
    if called and min(called.values()) < max(called.values()):
        least = min(called.values())
        behind = sorted(rank for rank, number in called.items() if number == least)
        yield (
            f"{name_ranks(behind)} called {least} collectives, others {max(called.values())}: "
            "what it does after them is what the others wait for"
        )
    elif at is not None:
        silent = sorted(set(range(ends.world_size or 0)) - set(ends.queues))
        who = f"; {name_ranks(silent)} reported none, and may not have come" if silent else ""
        waited = name_ranks(sorted(ends.queues))
        yield f"NCCL gave up waiting in {operation} number {at}, on {waited}{who}"


def _behind(ranks: Sequence[RankEnd]) -> Iterator[str]:
    numbers = {end.number or 0 for end in ranks}
    if len(numbers) < 2:
        yield from _fewer_steps(ranks)
        yield from _in_sections(ranks)
        return
    least = min(numbers)
    behind = [end for end in ranks if (end.number or 0) == least]
    ahead = [end for end in ranks if (end.number or 0) == max(numbers)]
    after = f"CHECKPOINT {least}: {behind[0].name}" if least else "its start"
    ahead_at = f"CHECKPOINT {ahead[0].number}: {ahead[0].name}"
    inside = _common_section(behind)
    yield (
        f"{_names(behind)} passed {after}{f' and began {inside}' if inside else ''}, "
        f"{_names(ahead)} came to {ahead_at}: look first at what {_names(behind)} does there"
    )


def _fewer_steps(ranks: Sequence[RankEnd]) -> Iterator[str]:
    """All passed the same checkpoint: who told fewer steps of its loop than others?"""
    counts = {end.steps for end in ranks}
    if len(counts) < 2:
        return
    behind = [end for end in ranks if end.steps == min(counts)]
    ahead = [end for end in ranks if end.steps == max(counts)]
    yield (
        f"{_names(ahead)} told {_steps(ahead[0])}, {_names(behind)} {_steps(behind[0])}: "
        f"look first at what {_names(behind)} does in the next one"
    )


def _steps(end: RankEnd) -> str:
    return f"{several(end.steps, 'step')}, the last one {end.step!r}" if end.steps else "none"


def _in_sections(ranks: Sequence[RankEnd]) -> Iterator[str]:
    """All passed the same checkpoint: who is in a section in which others are not?"""
    inside = [end for end in ranks if end.sections]
    if not inside or all(end.finished for end in ranks):
        return
    common = _common_section(ranks)
    if common:
        known = ALL_IN_ONE.get(phase_of_name(common) or "startup")
        yield known or f"all ranks began {common}, and none came back from it"
        return
    outside = [end for end in ranks if not end.sections]
    for name in dict.fromkeys(end.sections[-1] for end in inside):
        members = [end for end in inside if end.sections[-1] == name]
        rest = f"; {_names(outside)} said nothing of it" if outside else ""
        yield f"{_names(members)} began {name} and did not come back from it{rest}"


def _restarted(ranks: Sequence[int]) -> Iterator[str]:
    if ranks:
        yield f"{name_ranks(ranks)} was started again: what its last process said is shown"


def _alike(ranks: Sequence[RankEnd]) -> Iterator[str]:
    if all(end.finished for end in ranks):
        yield "every rank that spoke said that its training is over"
    else:
        yield "the ranks said the same: their log does not tell who is behind"


def _common_section(ends: Sequence[RankEnd]) -> str:
    """The section in which all of them are, innermost; empty where there is none."""
    inside = {end.sections[-1] if end.sections else "" for end in ends}
    return inside.pop() if len(inside) == 1 else ""


def _who(end: RankEnd) -> str:
    return f"process {end.pid}" if end.rank is None else f"rank {end.rank}"


def _names(ends: Sequence[RankEnd]) -> str:
    return name_ranks([end.rank for end in ends if end.rank is not None])
