"""How the rounds of a run are told: the one that ended, and those before the last."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.verdict import EvidenceItem
from lightning_hangcheck.reading.wording import join
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lightning_hangcheck.model.case import RunFacts
    from lightning_hangcheck.model.naming.slugs import VerdictKind
    from lightning_hangcheck.model.run import Round, RoundStart

MOST_TOLD = 2
"""Ways in which earlier rounds ended that the summary tells; the evidence has more."""
MOST_LISTED = 4
LAUNCHERS = {"torchrun": "torchrun", "slurm": "SLURM"}


def end_of_round(sentence: str, run: RunFacts) -> str:
    """Tell the end of a round that another has followed.

    Args:
        sentence: How it ended.
        run: Number of the round, those before it, and what followed.
    """
    before = run.earlier[-1] if run.earlier else None
    alike = f" as round {before.number} did" if before and before.summary == sentence else ""
    return f"round {run.round} ended{alike}: {sentence}; {_starts_again(run.next_start)}"


def end_of_run(sentence: str, kind: VerdictKind, run: RunFacts) -> str:
    """Tell the end of a job together with the rounds that failed before the last.

    Args:
        sentence: How the last round ended.
        kind: Of the verdict.
        run: Number of the last round, and those before it.
    """
    failed = _failed(run)
    if not failed:
        return sentence
    last = f"round {run.round}: {sentence}"
    if kind == "finished":
        last = f"{sentence} in round {run.round}"
    ways = list(_alike(failed))
    told = [
        f"{_name(rounds)} had ended{' likewise' if summary == sentence else f': {summary}'}"
        for summary, rounds in ways[:MOST_TOLD]
    ]
    untold = sum(len(rounds) for _, rounds in ways[MOST_TOLD:])
    more = [f"{untold} more {'round' if untold == 1 else 'rounds'} had ended otherwise"]
    return "; ".join((last, *told, *(more if untold else ())))


def earlier_rounds(run: RunFacts) -> Iterator[EvidenceItem]:
    """Describe how earlier rounds failed, one sentence for all that did alike."""
    ways = list(_alike(_failed(run)))
    for summary, rounds in ways[-MOST_LISTED:]:
        yield EvidenceItem("round", None, f"{_name(rounds)} ended: {summary}")


def _starts_again(start: RoundStart | None) -> str:
    launcher = LAUNCHERS.get(start.launcher, "") if start is not None else ""
    if start is None or not launcher:
        return "its ranks were started again"
    of = f"of {start.most}" if start.most else ""
    count = join(str(start.number), of) if start.number else ""
    return join(f"{launcher} restarts", f"({count})" if count else "")


def _failed(run: RunFacts) -> Sequence[Round]:
    return [one for one in run.earlier if one.verdict != "finished"]


def _alike(rounds: Sequence[Round]) -> Iterator[tuple[str, list[int]]]:
    """Ways to end, each with the numbers of the rounds that ended so."""
    ways: dict[str, list[int]] = {}
    for one in rounds:
        ways.setdefault(one.summary, []).append(one.number)
    yield from ways.items()


def _name(rounds: Sequence[int]) -> str:
    return f"{'round' if len(rounds) == 1 else 'rounds'} {format_ranks(rounds)}"
