"""The contract's patience table: what a finding is called after so much silence. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.diagnosis.rules.contract import Finding
    from lightning_hangcheck.model.case import Limits
    from lightning_hangcheck.model.slugs import VerdictKind

IDLE_SAMPLES, IDLE_SPAN_S = 2, 0.8
BUSY_SAMPLES, BUSY_SPAN_S = 3, 2.0
"""Least evidence for a suspicion. Two samples a second apart tell a loop from a wait; three in two
seconds tell a loop from a computation that happened to be caught twice in one function. A livelock
was seen by all looks since it began, however few of their samples are kept."""
STRANGE_PLACE_S = 4.0
"""Silence that is allowed where no pace is known: a tracker's run, a download or a first connection
takes a few seconds on a healthy job, and the culprit must be named within ten."""
STRANGE_BUSY_S = 6.0
"""The same where it computes, at whatever pace: a few seconds in one call of a library are common,
and looks at 6 and 10 s of silence still name a loop in time."""
GUARD_MARGIN_S = 5.0
"""What a guard may be late by: it ends a service process, and makes another logger instead."""
IDLE_SURPRISE, BUSY_SURPRISE = 2.0, 5.0
"""Multiples of a rank's longest pause, where it is known, from which a silence is unusual."""


def decide(finding: Finding, limits: Limits) -> VerdictKind:
    """Say what a finding is called: ``healthy`` where the silence is too short for anything.

    Args:
        finding: Of one rule.
        limits: In force.
    """
    if finding.certainty == "moving":
        late = finding.waited_for and finding.silence_s >= limit_s(finding, limits)
        return "slow" if late else "healthy"
    if finding.silence_s >= limit_s(finding, limits):
        return "dead" if finding.gone and finding.cause == "process_dead" else "hang"
    return "suspect" if _suspicious(finding) else "healthy"


def limit_s(finding: Finding, limits: Limits) -> float:
    """Return the silence, in seconds, from which a finding is no mere suspicion."""
    if finding.certainty == "proven":
        return limits.proven_after
    if finding.certainty == "idle":
        guarded = finding.goes_on_after_s + GUARD_MARGIN_S if finding.goes_on_after_s else 0.0
        return max(limits.idle_after, guarded)
    if finding.certainty in ("busy", "moving") and finding.pace is not None and finding.pace.known:
        return max(limits.busy_floor, limits.busy_factor * finding.pace.longest_pause_s)
    return limits.stall_timeout


def _suspicious(finding: Finding) -> bool:
    if finding.silence_s < finding.suspect_after_s or finding.silence_s < finding.span_s:
        return False
    if finding.certainty == "proven":
        return True
    if not finding.waited_for:
        return False
    known = finding.pace is not None and finding.pace.known
    pause = finding.pace.longest_pause_s if finding.pace is not None and known else 0
    if not known and finding.silence_s < STRANGE_PLACE_S:
        return False
    if finding.certainty == "idle":
        seen = finding.samples >= IDLE_SAMPLES and finding.span_s >= IDLE_SPAN_S
        return seen and finding.silence_s > IDLE_SURPRISE * pause
    if finding.certainty not in ("busy", "livelock"):
        return False
    seen = finding.samples >= BUSY_SAMPLES and finding.span_s >= BUSY_SPAN_S
    strange = finding.silence_s >= max(STRANGE_BUSY_S, BUSY_SURPRISE * pause)
    return strange and (seen or finding.certainty == "livelock")
