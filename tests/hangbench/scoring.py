"""Scores what was said about a case against its truth."""

from __future__ import annotations

import ast
import re
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec
from hangbench.bench import any_of

if TYPE_CHECKING:
    from hangbench.bench import Outcome, Truth

    from lightning_hangcheck.model.verdict import Verdict

ALARMS = {"hang", "dead", "crashed"}
PLACE = re.compile(r"\b(?:in|at) (?:([\w.<>]+) )?\(?((?:[^\s()]+/)?[^\s()/]+\.py):(\d+)\)?")
"""``in prepare (demo/train.py:88)``, as a summary names a line of the user's own code."""
OF_WAITERS = re.compile(r"ranks? [\d,-]+ waits? for (?:it|them)\b")
"""How the clause begins that says who waits for the culprits."""
WITHOUT_NAME = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
"""Frames that Python makes within a function: their line tells which one."""


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table. None stands for what the truth does not ask, or nobody said.

    Attributes:
        told: Kinds of all verdicts in their order.
        named_after_s: From the onset to the first verdict with the right culprits.
        alarm_after_s: From the onset to the first alarm.
        line: Whether the place named for the culprit is in the user's own function.
        wrong_suspects: Verdicts about others than the culprits, whatever was said later.
        early_alarms: Alarms before anything had gone wrong.
        ended_well: Whether a healthy program ended by itself, with exit code 0 and its own output.
        watched_s: How long the run took.
        true_cause: What is right, the first of it.
        said_cause: What the last verdict says.
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
    wrong_suspects: int = 0
    early_alarms: int = 0
    ended_well: bool | None = None
    watched_s: float = 0.0
    true_cause: str = ""
    said_cause: str = ""
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
        """Whether everything asked was answered rightly, and nothing wrong said before."""
        if self.healthy:
            return not self.false_alarm and self.told[-1:] == ["finished"] and bool(self.ended_well)
        asked = (self.detected, self.culprits, self.cause, self.phase, self.line)
        said_wrongly = self.wrong_suspects or self.early_alarms
        return not said_wrongly and all(answer in (None, True) for answer in asked)


def score(name: str, truth: Truth, outcome: Outcome) -> Score:
    """Score a run; of several verdicts the last one counts, as it is what the user reads."""
    if truth.healthy:
        return _score_of_healthy(name, truth, outcome)
    missed = Score(
        name=name,
        healthy=False,
        told=outcome.told,
        detected=False,
        watched_s=outcome.watched_s,
        true_cause=any_of(truth.cause)[0],
    )
    if not outcome.verdicts:
        return missed
    last, written = outcome.verdicts[-1], list(zip(outcome.verdicts, _times(outcome), strict=True))
    onset_s = outcome.onset_s or _seconds(last.stalled_since or last.detected_at)
    naming = [(one, at_s) for one, at_s in written if _names_somebody(one)]
    alarms = [at_s for one, at_s in written if one.verdict in ALARMS]
    right = [at_s for one, at_s in naming if list(one.culprits) in truth.all_culprits]
    functions = any_of(truth.function)
    return msgspec.structs.replace(
        missed,
        detected=outcome.told[-1] in any_of(truth.verdict),
        named_after_s=right[0] - onset_s if right else None,
        alarm_after_s=alarms[0] - onset_s if alarms else None,
        culprits=list(last.culprits) in truth.all_culprits,
        cause=last.cause in any_of(truth.cause),
        phase=None if truth.phase is None else last.phase in any_of(truth.phase),
        line=bool(functions_named(last.summary, outcome.source).intersection(functions))
        if functions
        else None,
        wrong_suspects=len(naming) - len(right),
        early_alarms=sum(at_s < onset_s for at_s in alarms),
        said_cause=last.cause or "",
        answer=_in_words(last),
    )


def _score_of_healthy(name: str, truth: Truth, outcome: Outcome) -> Score:
    alarms = [one for one in outcome.verdicts if one.verdict in ALARMS]
    return Score(
        name=name,
        healthy=True,
        told=outcome.told,
        ended_well=outcome.exit_code == 0 and all(text in outcome.output for text in truth.says),
        watched_s=outcome.watched_s,
        answer=_in_words(alarms[0]) if alarms else "",
    )


def functions_named(summary: str, source: str = "") -> set[str]:
    """The functions that a summary names for the culprits: not those where others wait for them.

    The script's source tells in which function a line lies.
    """
    clauses = [part for part in summary.split("; ") if not OF_WAITERS.match(part)]
    places = [match for part in clauses for match in PLACE.finditer(part)]
    names = {(match.group(1) or "<module>").rpartition(".")[2] for match in places}
    nameless = [match for match in places if (match.group(1) or "").endswith(WITHOUT_NAME)]
    return names | {_function_at(int(match.group(3)), source) for match in nameless}


def _function_at(line: int, source: str) -> str:
    """The innermost function in which a line of a script lies."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or one.lineno)]
    return max(around, key=lambda one: one.lineno).name if around else "<module>"


def _in_words(verdict: Verdict) -> str:
    return f"{list(verdict.culprits)} {verdict.cause} in {verdict.phase}: {verdict.summary}"


def _names_somebody(verdict: Verdict) -> bool:
    return verdict.verdict == "suspect" or verdict.verdict in ALARMS


def _times(outcome: Outcome) -> list[float]:
    """When each verdict was there, by the scorer's clock; what is made by hand has its own word."""
    told = [_seconds(one.detected_at) for one in outcome.verdicts]
    return outcome.written_s or told


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
