"""Builds the finding that most rules make: how long and how well the culprits were seen."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.diagnosis.rules.contract import Finding
from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.reading.source import left_out

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from lightning_hangcheck.diagnosis.rank_reading import RankReading
    from lightning_hangcheck.diagnosis.rules.contract import EndedBy
    from lightning_hangcheck.model.case import CodeNote
    from lightning_hangcheck.model.evidence import Frame
    from lightning_hangcheck.model.naming.slugs import Cause
    from lightning_hangcheck.model.verdict import EvidenceItem


def blame(
    culprits: Sequence[RankReading],
    *,
    cause: Cause,
    ended_by: EndedBy,
    confidence: float,
    sentence: str,
    waited_for: bool,
    aspect: str | None = None,
    evidence: Sequence[EvidenceItem] = (),
) -> Finding:
    """Blame ranks; the first of them gives place and phase, all together the silence.

    Args:
        culprits: At least one.
        cause: Slug.
        ended_by: As in `Finding`.
        confidence: As in `Finding`.
        sentence: As in `Finding`.
        waited_for: As in `Finding`.
        aspect: As in `Finding`.
        evidence: As in `Finding`.
    """
    measured = _measure(culprits)
    return Finding(
        cause=cause,
        culprits=tuple(one.rank for one in culprits),
        ended_by=ended_by,
        confidence=confidence,
        sentence=sentence,
        waited_for=waited_for,
        gone=any(not one.alive for one in culprits),
        place=culprits[0].place,
        phase=culprits[0].phase,
        silence_s=measured.silence_s,
        pace=measured.pace,
        goes_on_after_s=max(map(_goes_on_after_s, culprits)),
        samples=measured.samples,
        span_s=measured.span_s,
        aspect=aspect,
        evidence=tuple(evidence),
    )


def of_omission(
    finding: Finding,
    code: Sequence[CodeNote],
    ways: Collection[Sequence[Frame]],
    others: Collection[Sequence[Frame]],
) -> Finding:
    """Turn a finding to the line of the call that the culprits left out, if that is what they did.

    Args:
        finding: Of ranks that diverged.
        code: Notes on the lines of all.
        ways: Frames of the culprits.
        others: Those of the ranks that stayed.
    """
    found = [left_out(code, way, other) for way, other in product(ways, others)]
    left = found[0] if found else None
    if left is None or None in found:
        return replace(finding, aspect="made")
    test = f", under {left[1] or 'a test'}"
    return replace(finding, aspect="left_out", place=left[0], test=test)


class _Measure(Struct, frozen=True, kw_only=True):
    """How long, and how well, culprits were seen to stand still."""

    silence_s: float
    pace: Pace | None
    samples: int
    span_s: float


def _measure(culprits: Sequence[RankReading]) -> _Measure:
    """Measure culprits together: the longest silence, the least evidence, the slowest pace.

    Args:
        culprits: At least one.
    """
    paces = [one.view.pace for one in culprits if one.view.pace is not None]
    known = len(paces) == len(culprits) and all(pace.known for pace in paces)
    return _Measure(
        silence_s=max(one.silence_s for one in culprits),
        pace=max(paces, key=lambda pace: pace.longest_pause_s) if known else None,
        samples=min(one.process_activity.samples for one in culprits),
        span_s=min(map(_seen_s, culprits)),
    )


def _seen_s(culprit: RankReading) -> float:
    """By samples, or by the kernel, which saw for as long that its main thread did not run."""
    slept_s = min(culprit.view.slept_for_s or 0.0, culprit.silence_s)
    return max(culprit.process_activity.span_s, slept_s)


def _goes_on_after_s(culprit: RankReading) -> float:
    sections = culprit.view.beat.sections if culprit.view.beat is not None else ()
    return max((section.goes_on_after_s or 0.0 for section in sections), default=0.0)
