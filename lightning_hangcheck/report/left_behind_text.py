"""What `hangcheck postmortem` prints before its report: three lines, then what was read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.log_book import LogBook
from lightning_hangcheck.report.paragraphs import INDENT, aligned, labelled, plain
from lightning_hangcheck.report.verdict_text import name_ranks, summary
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.left_behind import LeftBehind
    from lightning_hangcheck.model.log_facts import LastWord, Trail
    from lightning_hangcheck.model.verdict import Verdict

MOST_KINDS = 8
MOST_WHY = 3
MOST_ROWS = 16
CERTAIN = {
    "proven": "proven by what was read",
    "majority": "by majority: the others do it otherwise",
}


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


def last_words(left: LeftBehind) -> list[str]:
    """A table of where each rank was last by its own lines; who came least far comes first."""
    book = LogBook(left.logs)
    together: dict[tuple[str, ...], list[int]] = {}
    order = sorted(book.words, key=lambda rank: _came(book.trails.get(rank), book.words[rank]))
    for rank in order:
        cells = tuple(plain(redact_text(one)) for one in _last(book, rank))
        together.setdefault(cells, []).append(rank)
    rows = [
        (name_ranks(sorted(ranks)), *cells, _times([book.words[rank].when for rank in ranks]))
        for cells, ranks in together.items()
    ]
    lines = aligned(rows[:MOST_ROWS], shrinking=(1, 2, 3), tails=-1) if rows else []
    more = [f"{INDENT}... and {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else []
    return [*lines, *more, *([""] if lines else [])]


def _came(trail: Trail | None, word: LastWord) -> tuple[int, str, int]:
    return (trail.checkpoint if trail else 0), word.when, word.rank or 0


def _last(book: LogBook, rank: int) -> tuple[str, str, str]:
    """Checkpoint, call, and the last line where it is another one."""
    trail, word = book.trails.get(rank), book.words[rank].text
    passed = f"CHECKPOINT {trail.checkpoint}: {trail.passed}" if trail and trail.checkpoint else ""
    call = trail.inside[-1].name if trail and trail.inside else ""
    known = word in (passed, f"About to call {call}...")
    return passed, f"in {call}" if call else "", "" if known else word


def _times(whens: list[str]) -> str:
    told = sorted(one for one in whens if one)
    if not told:
        return ""
    return f"last line {told[0]}" if told[0] == told[-1] else f"last lines {told[0]} to {told[-1]}"
