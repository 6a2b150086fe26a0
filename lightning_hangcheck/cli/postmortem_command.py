"""`hangcheck postmortem`: a verdict on a dead job, from the files that it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import HANG, kept_in, show
from lightning_hangcheck.judge.postmortem_facts import LogBook
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.left_behind import order_of
from lightning_hangcheck.postmortem.postmortem import postmortem as look_at
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.paragraphs import INDENT, aligned, labelled, plain
from lightning_hangcheck.report.verdict_text import name_ranks, summary
from lightning_hangcheck.rundir import name_run_folder, refuse_used
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.model.left_behind import LeftBehind, ReadFile
    from lightning_hangcheck.model.verdict import Verdict

MOST_KINDS = 8
MOST_ROWS = 16
CERTAIN = {
    "proven": "proven by what was read",
    "majority": "by majority: the others do it otherwise",
}


@cli.command(
    "postmortem",
    "hangcheck postmortem .",
    "hangcheck postmortem dumps/ slurm-4711.out",
    "hangcheck postmortem node0-run node1-run --json",
)
@click.argument("paths", nargs=-1, metavar="PATH...")
@cli.run_dir_option("OUT")
@cli.option("--json as_json", None, "Print the verdict alone, as JSON.")
def postmortem(paths: tuple[str, ...], run_dir: str | None, as_json: bool) -> int:
    """Explain a job that is gone: who held it up, and why, from the files that it left.

    Files are known by their content: logs, torch's flight-record dumps, stack dumps, and run
    folders of several nodes. Folders are searched. No torch is needed. Exit code 0 if nothing wrong
    is seen, 3 if a hang, death or crash is explained, also in part, 2 if nothing can be read.
    """
    example = "for example: hangcheck postmortem ."
    cli.refuse_empty("postmortem", paths, "files or folders of the job", example)
    folder = name_run_folder(run_dir)
    refuse_used(folder)
    found = look_at(paths, folder)
    if as_json:
        click.echo(encode_pretty(found.verdict), nl=False)
    else:
        report = verdict_text.render(found.case, found.verdict, kept_in(found.kept))
        show(_before_the_report(found.verdict, found.left) + report)
    # also an explanation in part is one
    return 0 if found.verdict.verdict in ("healthy", "finished", "recovered") else HANG


def _before_the_report(verdict: Verdict, left: LeftBehind) -> str:
    """Write who, why and what to do, for readers who stop there; then what was read."""
    calm = verdict.verdict in ("healthy", "finished")
    who = "nobody: no rank is proven to be at fault"
    if verdict.culprits:
        certain = CERTAIN.get(verdict.certainty or "", "")
        who = f"{name_ranks(verdict.culprits)}{f' ({certain})' if certain else ''}"
    elif guess := next((item.text for item in verdict.evidence if item.kind == "guess"), ""):
        who = f"nobody is proven to be at fault; {guess}"
    elif calm:
        who = "nobody: nothing wrong is seen"
    missing = "nothing" if calm else "nothing: no remedy is known"
    missing = next((f"{gap.what}: {gap.why}" for gap in verdict.gaps), missing)
    now = verdict.remedies[0].in_words if verdict.remedies else missing
    lines = [
        *labelled("who", who, most=1),
        *labelled("why", summary(verdict), most=3),
        *labelled("now", now, most=2),
        "",
        *_last_words(left),
        *_what_was_read(left),
        "",
    ]
    return "\n".join(lines) + "\n"


def _what_was_read(left: LeftBehind) -> Iterator[str]:
    """List what files were taken for, by kind, and what was left out."""
    kinds: dict[str, list[ReadFile]] = {}
    for file in left.read:
        kinds.setdefault(file.kind, []).append(file)
    for kind, same in list(kinds.items())[:MOST_KINDS]:
        ranks = sorted({rank for file in same for rank in file.ranks})
        whose = f" of {name_ranks(ranks)}" if ranks else ""
        count = "" if len(same) == 1 else f"{len(same)} files, such as "
        text = f"{kind}{whose}: {count}{same[0].path}"
        yield from labelled("read", text, most=2)
    whys: dict[str, list[str]] = {}
    for out in left.left_out:
        whys.setdefault(out.why, []).append(out.path)
    for why, paths in sorted(whys.items(), key=lambda group: -len(group[1]))[:MOST_KINDS]:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        yield from labelled("left out", f"{paths[0]}{more}: {why}", most=2)


def _last_words(left: LeftBehind) -> list[str]:
    """Make a table of each rank's last log lines; the rank that got least far comes first."""
    book = LogBook(left.logs)
    order = order_of(word.when for word in book.words.values())

    def came(rank: int) -> tuple[int, float, int]:
        trail, word = book.trails.get(rank), book.words[rank]
        return (trail.checkpoint if trail else 0), order(word.when), rank

    together: dict[tuple[str, ...], list[int]] = {}
    for rank in sorted(book.words, key=came):
        # checkpoint, call, and the last line if it says something else
        trail, word = book.trails.get(rank), book.words[rank].text
        named = trail is not None and trail.checkpoint
        passed = f"CHECKPOINT {trail.checkpoint}: {trail.passed}" if trail and named else ""
        call = trail.inside[-1].name if trail and trail.inside else ""
        known = word in (passed, f"About to call {call}...")
        cells = (passed, f"in {call}" if call else "", "" if known else word)
        together.setdefault(tuple(plain(redact_text(cell)) for cell in cells), []).append(rank)
    rows = []
    for alike, ranks in together.items():
        whens = sorted(filter(None, (book.words[rank].when for rank in ranks)), key=order)
        when = f"last lines {whens[0]} to {whens[-1]}" if whens else ""
        if whens and whens[0] == whens[-1]:
            when = f"last line {whens[0]}"
        rows.append((name_ranks(sorted(ranks)), *alike, when))
    lines = aligned(rows[:MOST_ROWS], shrinking=(1, 2, 3))
    more = [f"{INDENT}... and {len(rows) - MOST_ROWS} more rows"] if len(rows) > MOST_ROWS else []
    return [*lines, *more, *([""] if lines else [])]
