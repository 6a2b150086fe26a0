"""The verdict as plain text: understood in ten seconds, at most 40 lines at any world size."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.wording import duration
from lightning_hangcheck.report.causes import causes, explanation
from lightning_hangcheck.report.paragraphs import labelled, listed, of_rank
from lightning_hangcheck.report.verdict_text.headline import (
    headline,
    last_seen,
    stall_cost,
    summary,
)
from lightning_hangcheck.report.verdict_text.rank_rows import name_ranks, rank_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Gap, Verdict

# The 40 lines: these, the two blank lines, and two lines of `more`.
MOST_HEADLINE = 4
MOST_ROWS = 7
MOST_WHY = 3
MOST_PROOF = 8
MOST_REMEDIES = 10
MOST_GAPS = 4
LONGEST_WITH_COMMAND = 95
"""A longer remedy has its command on a line of its own, so that it can be copied whole."""
ASIDES = {"lost": 1, "saves": 2}
"""Kinds of evidence that are no proof, with their lines: these are taken from those of the ranks.
"""


def render(case: Case | None, verdict: Verdict, run_folder: str) -> str:
    """Write the whole report.

    Args:
        case: What the verdict was made from, for the time of each rank's last progress; the report
            does without where it is None.
        verdict: Of any kind.
        run_folder: As the reader should type it.

    Returns:
        Lines of at most 120 columns (except where a single word, such as a path, is longer), ending
        in a newline, without colour.
    """
    asides = [line for kind in ASIDES for line in _aside(verdict, kind)]
    rows = rank_rows(verdict, last_seen(case), MOST_ROWS - len(asides))
    lines = [
        *headline(verdict, MOST_HEADLINE),
        "",
        *rows,
        *([""] if rows else []),
        *_why(verdict),
        *listed("proof", _evidence(verdict), MOST_PROOF),
        *asides,
        *listed("do", _remedies(verdict), MOST_REMEDIES),
        *listed("not seen", gap_lines(verdict.gaps), MOST_GAPS),
        *_more(verdict, run_folder),
    ]
    return "\n".join(lines) + "\n"


def render_line(verdict: Verdict) -> str:
    """Write a verdict as one line, without a newline: what a suspicion or a recovery is worth."""
    cost = stall_cost(verdict)
    return f"{verdict.verdict.upper()}  {summary(verdict)}" + (f"  ({cost})" if cost else "")


def render_short(verdict: Verdict, run_folder: str) -> str:
    """Write it as one line that names the run folder, and below it how to save the next time.

    Args:
        verdict: Of any kind; the second line is there only where it speaks of saving.
        run_folder: As the reader should type it.
    """
    line = f"{render_line(verdict)}; run folder {shlex.quote(run_folder)}"
    return "\n".join([line, *_aside(verdict, "saves")])


def render_reminder(verdict: Verdict, stood_s: float, run_folder: str) -> str:
    """Write as one line that a verdict still stands.

    Args:
        verdict: As it was told.
        stood_s: Seconds since then.
        run_folder: As the reader should type it.
    """
    kind, place = verdict.verdict.upper(), shlex.quote(run_folder)
    told = f"as it was told: {summary(verdict)}"
    return f"{kind}  still so {duration(stood_s)} later; {told}; run folder {place}"


def render_again(verdict: Verdict, run_folder: str) -> str:
    """Write a verdict that was reported before, with what is new in its summary, as two lines."""
    return "\n".join([render_line(verdict), *_report_command(run_folder)])


def reason(verdict: Verdict) -> str:
    """Say the cause and who waits for whom; empty of a crash, whose summary says it all."""
    if verdict.cause is None or verdict.verdict == "crashed":
        return ""
    said = explanation(verdict.cause, verdict.world_size, len(verdict.culprits))
    parts = (said.rstrip("."), _waiting(verdict))
    reasons = "; ".join(filter(None, parts)) or "no more is known"
    return f"{verdict.cause}: {reasons} (confidence {verdict.confidence:.2f})"


def _why(verdict: Verdict) -> list[str]:
    text = reason(verdict)
    return labelled("why", text, MOST_WHY) if text else []


def _waiting(verdict: Verdict) -> str:
    """Who waits for whom; after a recovery the wait is over."""
    if not (verdict.victims and verdict.culprits):
        return ""
    verb = "waits" if len(verdict.victims) == 1 else "wait"
    if verdict.verdict == "recovered":
        verb = "waited"
    return f"{name_ranks(verdict.victims)} {verb} for {name_ranks(verdict.culprits)}"


def _evidence(verdict: Verdict) -> Iterator[str]:
    for item in verdict.evidence:
        if item.kind in ASIDES:
            continue
        yield of_rank(item.rank, item.text)


def _aside(verdict: Verdict, kind: str) -> list[str]:
    told = [item.text for item in verdict.evidence if item.kind == kind]
    return labelled(kind, told[0], most=ASIDES[kind]) if told else []


def _remedies(verdict: Verdict) -> Iterator[str]:
    for number, remedy in enumerate(verdict.remedies, start=1):
        text = remedy.in_words
        below = [f"see {remedy.see}"] if remedy.see else []
        if remedy.command and len(text) > LONGEST_WITH_COMMAND:
            text, below = f"{remedy.text}:", [remedy.command, *below]
        first, *others = text.splitlines() or [""]
        yield "\n".join([f"{number}. {first}", *(f"   {line}" for line in [*others, *below])])


def _more(verdict: Verdict, run_folder: str) -> list[str]:
    """Commands, one a line, so that each can be copied whole."""
    again = _report_command(run_folder)
    untold = verdict.verdict == "crashed" and verdict.cause == "unknown"
    if untold or verdict.cause is None or verdict.cause not in causes():
        return again
    return [*again, *labelled("", f"hangcheck explain {verdict.cause}", most=1)]


def _report_command(run_folder: str) -> list[str]:
    return labelled("more", f"hangcheck report {shlex.quote(run_folder)}", most=1)


def gap_lines(gaps: Sequence[Gap]) -> Iterator[str]:
    """Say what could not be seen; gaps with one reason share one item.

    A missing py-spy is one fact, not one for each rank.
    """
    if not gaps:
        yield "nothing"
    together: dict[str, list[Gap]] = {}
    for gap in gaps:
        together.setdefault(gap.why, []).append(gap)
    for why, same in together.items():
        ranks = sorted({gap.rank for gap in same if gap.rank is not None})
        others = len({gap.what for gap in same}) - 1
        what = same[0].what + (f" and {others} more" if others else "")
        yield f"{name_ranks(ranks)}: {what}: {why}" if ranks else f"{what}: {why}"
