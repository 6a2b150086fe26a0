"""Scores what a peer said by the rules of our own verdicts, and puts both in one form."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from hangbench.bench import any_of

if TYPE_CHECKING:
    from corpus.peers.transcript import Said, Transcript
    from hangbench.bench import Truth
    from hangbench.scoring import Score

OURS = "hangcheck"


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One tool's answer about one case. None stands for what the truth does not ask.

    Attributes:
        who: The tool.
        detected: Of a hanging case: something printed, or a failing end, told of it in time.
        after_s: From the onset to that; None where nothing told, or the onset is not known.
        culprits: Whether one set of ranks that it named is exactly right.
        line: Whether the user's own function is in the output.
        false_alarm: Of a healthy case: it was reported, or ended, as a failure.
    """

    who: str
    name: str
    healthy: bool
    detected: bool | None = None
    after_s: float | None = None
    culprits: bool | None = None
    cause: bool | None = None
    line: bool | None = None
    false_alarm: bool = False
    words: str = ""


def of_peer(who: str, name: str, truth: Truth, heard: tuple[Transcript, Said]) -> Beside:
    """Score a peer; what it did not tell is wrong, as it is with us."""
    transcript, said = heard
    told = said.at_s is not None
    if truth.healthy:
        return Beside(who=who, name=name, healthy=True, false_alarm=told, words=said.words)
    functions = any_of(truth.function)
    return Beside(
        who=who,
        name=name,
        healthy=False,
        detected=told,
        after_s=_since_onset(transcript, said),
        culprits=any(answer in truth.all_culprits for answer in said.culprits),
        cause=bool(set(said.causes).intersection(any_of(truth.cause))),
        line=told and _shows(transcript, functions) if functions else None,
        words=said.words,
    )


def of_ours(score: Score) -> Beside:
    """A score of the normal run; only `hang`, `dead` and `crashed` count as telling."""
    return Beside(
        who=OURS,
        name=score.name,
        healthy=score.healthy,
        detected=score.detected,
        after_s=score.alarm_after_s,
        culprits=score.culprits,
        cause=score.cause,
        line=score.line,
        false_alarm=score.false_alarm,
        words=score.answer,
    )


def _since_onset(transcript: Transcript, said: Said) -> float | None:
    if said.at_s is None or transcript.onset_s is None:
        return None
    return max(0.0, said.at_s - transcript.onset_s)


def _shows(transcript: Transcript, functions: list[str]) -> bool:
    texts = [transcript.stacks, *(line.text for line in transcript.lines)]
    wanted = re.compile(rf"\b({'|'.join(functions)})\b")
    return any(wanted.search(text) for text in texts)
