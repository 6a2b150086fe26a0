"""Scores what was said about a case against its truth."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from hangbench.bench import any_of

if TYPE_CHECKING:
    from hangbench.bench import Outcome, Truth

    from lightning_hangcheck.model.verdict import Verdict

ALARMS = {"hang", "dead", "crashed"}


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. None stands for what the truth does not ask, or nobody said.

    Attributes:
        told: Kinds of all verdicts in their order.
        named_after_s: From the onset to the first verdict with the right culprits.
        alarm_after_s: From the onset to the first alarm.
        line: Whether the user's own function is in the summary.
        answer: The last verdict's who, why, where in life, and in words; of a healthy run, those
            of its first alarm.
    """

    name: str
    healthy: bool
    told: list[str]
    detected: bool | None = None
    named_after_s: float | None = None
    alarm_after_s: float | None = None
    culprits: bool | None = None
    cause: bool | None = None
    phase: bool | None = None
    line: bool | None = None
    answer: str = ""

    @property
    def false_alarm(self) -> bool:
        """Whether a healthy run was called a hang, dead or crashed."""
        return self.healthy and bool(ALARMS.intersection(self.told))

    @property
    def suspicions(self) -> int:
        """How often somebody was suspected."""
        return self.told.count("suspect")

    @property
    def right(self) -> bool:
        """Whether everything asked was answered rightly."""
        if self.healthy:
            return not self.false_alarm and self.told[-1:] == ["finished"]
        asked = (self.detected, self.culprits, self.cause, self.phase, self.line)
        return all(answer in (None, True) for answer in asked)


def score(name: str, truth: Truth, outcome: Outcome) -> Score:
    """Score a run; of several verdicts the last one counts, as it is what the user reads."""
    if truth.healthy:
        alarms = [one for one in outcome.verdicts if one.verdict in ALARMS]
        answer = _in_words(alarms[0]) if alarms else ""
        return Score(name=name, healthy=True, told=outcome.told, answer=answer)
    if not outcome.verdicts:
        return Score(name=name, healthy=False, told=[], detected=False)
    last = outcome.verdicts[-1]
    onset_s = outcome.onset_s or _seconds(last.stalled_since or last.detected_at)
    functions = any_of(truth.function)
    return Score(
        name=name,
        healthy=False,
        told=outcome.told,
        detected=last.verdict in any_of(truth.verdict),
        named_after_s=_first(onset_s, [one for one in outcome.verdicts if _names(one, truth)]),
        alarm_after_s=_first(onset_s, [one for one in outcome.verdicts if one.verdict in ALARMS]),
        culprits=list(last.culprits) in truth.all_culprits,
        cause=last.cause in any_of(truth.cause),
        phase=None if truth.phase is None else last.phase == truth.phase,
        line=any(function in last.summary for function in functions) if functions else None,
        answer=_in_words(last),
    )


def _in_words(verdict: Verdict) -> str:
    return f"{list(verdict.culprits)} {verdict.cause} in {verdict.phase}: {verdict.summary}"


def _names(verdict: Verdict, truth: Truth) -> bool:
    named = verdict.verdict == "suspect" or verdict.verdict in ALARMS
    return named and list(verdict.culprits) in truth.all_culprits


def _first(onset_s: float, verdicts: list[Verdict]) -> float | None:
    return _seconds(verdicts[0].detected_at) - onset_s if verdicts else None


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
