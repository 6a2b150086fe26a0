"""Rows of the ledger with their share and cost, and the reason that was seen. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.ledger.spending import SECONDS_PER_HOUR
from lightning_hangcheck.text.shown import seconds_in_words

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.book import Run
    from lightning_hangcheck.ledger.spending import Prices, Stall
    from lightning_hangcheck.ledger.story import PhaseStory, Story

LOADER_BOUND = 0.3
"""Share of the ranks' time in the loader from which it is worth a worker more."""
STALLED = 0.1
"""Share of a run from which its stalls are why it took so long."""
ONE_CORE, IDLE = 0.8, 0.2
"""Cores used on average: above, a phase computes on the CPU; below, it waits, for a GPU or else."""
WORTH_A_REASON_S = 10.0
"""Below, processor time of so few ticks tells nothing, and nobody asks."""


class Row(Struct, frozen=True, kw_only=True):
    """A phase or a run.

    Attributes:
        share: Of the rank hours of all rows of its kind.
        cost: None where no price is known.
        reason: Why it took so long, as far as it was seen; empty where nothing tells.
        spent: Of a run, shares of its ranks' time by what they did, the largest first.
        stalled_s: Of a run, seconds of its silences.
    """

    what: str
    name: str
    begun_at: str
    status: str
    duration_s: float | None
    ranks: int
    rank_hours: float
    share: float
    cost: float | None
    metrics: dict[str, float] = {}
    gpus: tuple[str, ...] = ()
    commit: str = ""
    reason: str = ""
    note: str = ""
    spent: dict[str, float] = {}
    stalled_s: float = 0.0


class StallRow(Struct, frozen=True, kw_only=True):
    """A stall of a run, with its cost."""

    run: str
    verdict: str
    cause: str
    phase: str
    seconds: float
    rank_hours: float
    cost: float | None
    explained: bool
    summary: str


class Bill(Struct, frozen=True, kw_only=True):
    """All rows of a ledger. What ``--json`` prints.

    Attributes:
        cost: Of all runs and of phases, each by itself: a phase may lie within a run. None where no
            price is known.
    """

    schema_version: int = 1
    phases: tuple[Row, ...] = ()
    runs: tuple[Row, ...] = ()
    stalls: tuple[StallRow, ...] = ()
    phases_cost: float | None = None
    runs_cost: float | None = None
    unreadable: int = 0


def make_bill(story: Story, prices: Prices) -> Bill:
    """Reckon what a ledger comes to.

    Args:
        story: What it tells.
        prices: Of an hour.
    """
    phases = _with_shares([_of_phase(phase, prices) for phase in story.phases])
    runs = _with_shares([_of_run(run, prices) for run in story.runs])
    return Bill(
        phases=phases,
        runs=runs,
        stalls=tuple(_of_stall(run, one, prices) for run in story.runs for one in run.stalls),
        phases_cost=_sum(phases),
        runs_cost=_sum(runs),
        unreadable=story.unreadable,
    )


def _of_phase(phase: PhaseStory, prices: Prices) -> Row:
    place, seconds = phase.place, phase.duration_s or 0.0
    times = "once" if phase.reused == 1 else f"{phase.reused} times"
    cut_short = phase.status in ("interrupted", "unknown") and phase.duration_s is not None
    notes = [
        "lasted at least this long" if cut_short else "",
        phase.error,
        phase.discarded or phase.stale,
        f"reused {times}" if phase.reused else "",
    ]
    reasons = []  # by what its own process told and used, which rank 0's is for all
    if phase.status in ("done", "failed") and seconds >= WORTH_A_REASON_S:
        cores = phase.cpu_s / seconds
        reasons = [f"offloaded: {what}" for what in phase.offloaded]
        if cores >= ONE_CORE:
            reasons.append(f"on the CPU: {cores:.1f} cores busy")
        elif cores < IDLE:
            reasons.append(f"waiting: {cores:.0%} of one core busy")
    return Row(
        what="phase",
        name=phase.name,
        begun_at=phase.begun_at,
        status="discarded" if phase.discarded else "stale" if phase.stale else phase.status,
        duration_s=phase.duration_s,
        ranks=place.ranks,
        rank_hours=place.ranks * seconds / SECONDS_PER_HOUR,
        share=0.0,
        cost=None if phase.duration_s is None else prices.cost(place.gpus, place.ranks, seconds),
        metrics=phase.metrics,
        gpus=place.gpus,
        commit=f"{place.commit[:10]}{'+' if place.dirty else ''}",
        reason="; ".join(reasons),
        note="; ".join(filter(None, notes)),
    )


def _of_run(run: Run, prices: Prices) -> Row:
    stalled_s, all_s = sum(one.seconds for one in run.stalls), sum(one.seconds for one in run.spent)
    largest_first = sorted(run.spent, key=lambda one: -one.seconds)
    spent = {str(one.phase): one.seconds / all_s for one in largest_first if one.seconds}
    reasons = []
    if run.duration_s and stalled_s / run.duration_s >= STALLED:
        causes = ", ".join(dict.fromkeys(stall.cause or "unknown" for stall in run.stalls))
        reasons.append(f"waiting: {seconds_in_words(stalled_s)} stalled ({causes})")
    loading = spent.get("dataloading", 0.0)
    if loading >= LOADER_BOUND:
        reasons.append(f"loader-bound: {loading:.0%} of the time in dataloading")
    if run.duration_s >= WORTH_A_REASON_S:
        reasons += [f"offloaded: {what}" for what in run.offloaded]
    return Row(
        what="run",
        name=run.run_id,
        begun_at=run.started_at,
        status=run.verdict or "ended",
        duration_s=run.duration_s,
        ranks=run.ranks,
        rank_hours=run.ranks * run.duration_s / SECONDS_PER_HOUR,
        share=0.0,
        cost=prices.cost(run.gpus, run.ranks, run.duration_s),
        gpus=run.gpus,
        reason="; ".join(reasons),
        note=run.command,
        spent=spent,
        stalled_s=stalled_s,
    )


def _of_stall(run: Run, stall: Stall, prices: Prices) -> StallRow:
    return StallRow(
        run=run.run_id,
        verdict=stall.verdict,
        cause=stall.cause,
        phase=stall.phase,
        seconds=stall.seconds,
        rank_hours=stall.rank_hours,
        cost=prices.cost(run.gpus, 1, stall.rank_hours * SECONDS_PER_HOUR),
        explained=stall.explained,
        summary=stall.summary,
    )


def _with_shares(rows: list[Row]) -> tuple[Row, ...]:
    total = sum(row.rank_hours for row in rows)
    return tuple(replace(row, share=row.rank_hours / total if total else 0.0) for row in rows)


def _sum(rows: tuple[Row, ...]) -> float | None:
    costs = [row.cost for row in rows if row.cost is not None]
    return sum(costs) if costs else None
