"""What `hangcheck postmortem` prints before its report: three lines, then what was read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import labelled
from lightning_hangcheck.report.verdict_text import name_ranks, summary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.left_behind import LeftBehind
    from lightning_hangcheck.model.verdict import Verdict

MOST_KINDS = 8
MOST_WHY = 3
CERTAIN = {
    "proven": "proven by what was read",
    "majority": "by majority: the others do it otherwise",
}
LABELS = {"proven": "who", "majority": "who"}


def three_lines(verdict: Verdict) -> list[str]:
    """Say who, why and what now, for somebody who reads nothing more."""
    return [
        *labelled("who", _who(verdict), most=1),
        *labelled("why", summary(verdict), most=MOST_WHY),
        *labelled("now", _now(verdict), most=2),
    ]


def _who(verdict: Verdict) -> str:
    if verdict.culprits:
        certain = CERTAIN.get(verdict.certainty or "", "")
        return f"{name_ranks(verdict.culprits)}{f' ({certain})' if certain else ''}"
    guess = next((one.text for one in verdict.evidence if one.kind == "guess"), "")
    if guess:
        return f"nobody is proven to be at fault; {guess}"
    if verdict.verdict in ("healthy", "finished"):
        return "nobody: nothing wrong is seen"
    return "nobody: no rank is proven to be at fault"


def _now(verdict: Verdict) -> str:
    if verdict.remedies:
        return verdict.remedies[0].in_words
    missing = next((gap.why for gap in verdict.gaps), "")
    return missing or "nothing"


def what_was_read(left: LeftBehind) -> Iterator[str]:
    """Say what files were taken for, those of one kind together, and what was left out."""
    kinds: dict[str, list[int]] = {}
    counts = Counter(one.kind for one in left.read)
    for one in left.read:
        kinds.setdefault(one.kind, []).extend(one.ranks)
    for kind, ranks in list(kinds.items())[:MOST_KINDS]:
        first = next(one.path for one in left.read if one.kind == kind)
        whose = f" of {name_ranks(sorted(set(ranks)))}" if ranks else ""
        files = "1 file" if counts[kind] == 1 else f"{counts[kind]} files"
        yield from labelled("read", f"{kind}{whose}: {files}, such as {first}", most=2)
    whys: dict[str, list[str]] = {}
    for out in left.left_out:
        whys.setdefault(out.why, []).append(out.path)
    for why, paths in sorted(whys.items(), key=lambda one: -len(one[1]))[:MOST_KINDS]:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield from labelled("left out", f"{paths[0]}{more}: {why}", most=2)
