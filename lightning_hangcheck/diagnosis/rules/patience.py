"""The contract's patience table: what a finding is called after so much silence. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.contract import Finding
    from lightning_hangcheck.model.case import Limits
    from lightning_hangcheck.model.naming.slugs import VerdictKind

IDLE_SAMPLES, IDLE_SPAN_S = 2, 0.8
BUSY_SAMPLES, BUSY_SPAN_S = 3, 2.0
"""Least evidence for a suspicion. Two samples a second apart tell a loop from a wait; three in two
seconds tell a loop from a computation that happened to be caught twice in one function. What goes
in circles was seen by all looks since it began, however few of their samples are kept."""
GUARD_MARGIN_S = 5.0
"""What a guard may be late by: it ends a service process, and makes another logger instead."""
IDLE_SURPRISE, BUSY_SURPRISE = 2.0, 5.0
"""Multiples of a rank's longest pause, where it is known, from which a silence is unusual."""


class Row(Struct, frozen=True, kw_only=True):
    """A row of the table, with what makes a suspicion of it worth telling.

    Attributes:
        suspect_s: Silence from which it is suspected, seconds.
        hang_s: Silence from which it is called, seconds.
        samples: Least of each culprit for a suspicion.
        span_s: Least seconds from the first of them to the last.
        surprise: Multiple of the culprits' longest pause, where it is known, below which no silence
            is suspected.
        proven: Suspected whoever waits.
    """

    suspect_s: float
    hang_s: float
    samples: int = 0
    span_s: float = 0.0
    surprise: float = 0.0
    proven: bool = False


def decide(finding: Finding, limits: Limits) -> VerdictKind:
    """Say what a finding is called: ``healthy`` where the silence is too short for anything.

    Args:
        finding: Of one rule.
        limits: In force.
    """
    if finding.ended_by == "pace":
        return "slow"
    row = row_of(finding, limits)
    if finding.ended_by == "moving":
        return "slow" if finding.waited_for and finding.silence_s >= row.hang_s else "healthy"
    if finding.silence_s >= row.hang_s:
        return "dead" if finding.gone and finding.cause == "process_dead" else "hang"
    return "suspect" if _suspicious(finding, row) else "healthy"


def row_of(finding: Finding, limits: Limits) -> Row:
    """Return the row of the table that a finding is in."""
    ended_by, never = finding.ended_by, math.inf
    stall_s = max(limits.stall_timeout, _guarded_s(finding))
    if ended_by == "nobody":
        return Row(suspect_s=limits.suspect_proven_after, hang_s=limits.proven_after, proven=True)
    if ended_by == "person":
        return Row(suspect_s=limits.suspect_person_after, hang_s=limits.person_after, proven=True)
    if ended_by == "inside":
        hang_s = max(limits.idle_after, _guarded_s(finding))
        return _idle(limits.suspect_idle_after, hang_s)
    if ended_by == "outside":
        return _idle(limits.suspect_outside_after, stall_s)
    if ended_by in ("announced", "never_coming"):
        comes = ended_by == "announced"
        hang_s = limits.stall_timeout if comes else limits.absent_after
        return Row(suspect_s=limits.suspect_absent_after, hang_s=hang_s, proven=True)
    if ended_by == "last_call":
        called_s = max(limits.suspect_absent_after, _guarded_s(finding))
        return Row(suspect_s=called_s, hang_s=stall_s, proven=True)
    if ended_by == "circles":
        return _busy(limits.suspect_busy_after, limits.stall_timeout)
    if ended_by == "known_pace":
        return _busy(limits.suspect_busy_after, _paced_s(finding, limits))
    if ended_by == "unknown_pace":
        return Row(suspect_s=never, hang_s=limits.stall_timeout)
    return Row(suspect_s=never, hang_s=_paced_s(finding, limits))


def _idle(suspect_s: float, hang_s: float) -> Row:
    return Row(
        suspect_s=suspect_s,
        hang_s=hang_s,
        samples=IDLE_SAMPLES,
        span_s=IDLE_SPAN_S,
        surprise=IDLE_SURPRISE,
    )


def _busy(suspect_s: float, hang_s: float) -> Row:
    return Row(
        suspect_s=suspect_s,
        hang_s=hang_s,
        samples=BUSY_SAMPLES,
        span_s=BUSY_SPAN_S,
        surprise=BUSY_SURPRISE,
    )


def _paced_s(finding: Finding, limits: Limits) -> float:
    if finding.pace is None or not finding.pace.known:
        return limits.stall_timeout
    return max(limits.busy_floor, limits.busy_factor * finding.pace.longest_pause_s)


def _guarded_s(finding: Finding) -> float:
    return finding.goes_on_after_s + GUARD_MARGIN_S if finding.goes_on_after_s else 0.0


def _suspicious(finding: Finding, row: Row) -> bool:
    """Whether it is worth a line: silent for longer than usual, seen often enough, and awaited."""
    if finding.silence_s < row.suspect_s or finding.silence_s < finding.span_s:
        return False
    if row.proven:
        return True
    known = finding.pace is not None and finding.pace.known
    pause_s = finding.pace.longest_pause_s if finding.pace is not None and known else 0.0
    seen = finding.samples >= row.samples and finding.span_s >= row.span_s
    seen = seen or finding.gone
    matters = finding.waited_for or finding.standstill
    return matters and seen and finding.silence_s >= row.surprise * pause_s
