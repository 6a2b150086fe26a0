"""`hangcheck report` and `watch`: what a run folder shows, during the run or afterwards."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, get_args

import click
from msgspec.structs import replace

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import as_typed, found_run_folder, say, show
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files import write_atomically
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.verdict import Gap
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.journals import folders_of_nodes
from lightning_hangcheck.report.page import Form, write_as
from lightning_hangcheck.report.paragraphs import WIDTH
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.report.stragglers import find_stragglers, stragglers_lines
from lightning_hangcheck.rundir import folder_of_start, starts_so_far

if TYPE_CHECKING:
    from lightning_hangcheck.report.saved_run import SavedRun
    from lightning_hangcheck.rundir import RunFolder

FORMS: dict[str, Form] = {form: form for form in get_args(Form)}


@cli.command(
    "report",
    "hangcheck report",
    "hangcheck report hangcheck_runs/20261120T102301-7f3a",
    "hangcheck report --json > verdict.json",
    "hangcheck report --html report.html",
    'hangcheck report --issue | gh issue create --title "job hangs" --body-file -',
    "hangcheck report --prompt > prompt.md",
    "hangcheck report --perfetto trace.json",
)
@click.argument("paths", nargs=-1, metavar="[RUN_DIR]")
@cli.option("--json", None, "Print the verdict as JSON, for programs.")
@cli.option("--html", "FILE", "Write one self-contained page; - prints it.")
@cli.option("--issue", None, "Print Markdown for an issue.")
@cli.option("--prompt", None, "Print Markdown for a coding agent.")
@cli.option("--perfetto", "FILE", "Write a trace for ui.perfetto.dev; - prints it.")
def report(paths: tuple[str, ...], **asked: str | bool | None) -> int:
    """Print the newest verdict of a run.

    Without RUN_DIR it is the newest run below hangcheck_runs/. A run that has no verdict yet shows
    each rank's last checkpoint instead; one that goes on also where each rank is now, and its pace.
    Logs are read by `hangcheck postmortem`. Exit code 2 if the folder cannot be used.
    """
    form = cli.only_form("report", asked)
    if len(paths) > 1:
        raise BadUsage(
            "report takes one run folder",
            "hangcheck report RUN_DIR, or for logs: hangcheck postmortem FILE...",
        )
    run_dir = paths[0] if paths else None
    folder = found_run_folder(run_dir, "hangcheck report RUN_DIR")
    shown_folder = run_dir or as_typed(folder.path)
    saved = read_saved_run(folder)
    if form is None:
        _show(saved, folder, shown_folder)
    elif saved.verdict is None:
        raise UnreadableRun(
            saved.refused or f"{shown_folder} has no verdict yet",
            f"see each rank's last checkpoint: hangcheck report {quote(shown_folder)}",
        )
    elif form == "json":
        click.echo(encode_pretty(saved.verdict), nl=False)  # follows docs/verdict.schema.json
    else:
        text = write_as(
            FORMS[form],
            folder,
            saved.verdict,
            saved.case,
            run_folder=shown_folder,
            price=os.environ.get("HANGCHECK_PRICE", ""),
            gaps=saved.gaps,
        )
        _write(text, asked[form])
    return 0


def _show(saved: SavedRun, folder: RunFolder, shown_folder: str) -> None:
    # imported here: output to a file does not need them
    from lightning_hangcheck.live_view.run_follower import RunFollower
    from lightning_hangcheck.live_view.view_text import fitted, rows, view_lines

    now = RunFollower(folder, shown_folder, saved).read()
    if saved.verdict is None:
        for shown in view_lines(now)[:-1]:  # without the line on how to leave the live view
            click.echo(shown.text)
    else:
        judged = replace(saved.verdict, gaps=(*saved.verdict.gaps, *map(Gap.of, saved.gaps)))
        show(verdict_text.render(saved.case, judged, shown_folder))
        for line in stragglers_lines(find_stragglers(saved.case)):
            click.echo(line)
        if any(rank.silent_s is not None for rank in now.ranks) and not now.over:
            # few lines: the verdict already names the ranks in trouble
            click.echo("\n".join(["", "now", "", *fitted(rows(now.ranks, now.at)[:8], WIDTH)]))
    nodes = [node.run_id for node in folders_of_nodes(folder)]
    if nodes:
        click.echo(f"what other nodes saw is in {', '.join(nodes)}: hangcheck merge {shown_folder}")
    if (starts := starts_so_far(folder)) > 1:
        newest = folder_of_start(folder, starts).run_id
        click.echo(f"the job was started again: hangcheck report {shown_folder}/{newest}")


def _write(text: str, file: str | bool | None) -> None:
    """Print the text, or write the file so that nobody ever sees half of it."""
    if not isinstance(file, str) or file == "-":
        click.echo(text, nl=False)
        return
    path = Path(file)
    remedy = "name a file that you may write"
    if path.exists() and not path.is_file():
        raise BadUsage(f"{path} exists and is not a file", remedy)
    try:
        write_atomically(path, text.encode())
    except OSError as error:
        raise BadUsage(f"{path} cannot be written ({error.strerror})", remedy) from error
    say(f"wrote {path}")


@cli.command(
    "watch",
    "hangcheck watch",
    "hangcheck watch hangcheck_runs/20261120T102301-7f3a",
    "hangcheck watch | tee watch.log",
)
@click.argument("run_dir", required=False, metavar="[RUN_DIR]")
def watch(run_dir: str | None) -> int:
    """Show a run as it goes on: the newest verdict, then a row per rank, problems first.

    Without RUN_DIR it is the newest run below hangcheck_runs/. It only reads, and Ctrl-C ends the
    view alone. It ends by itself when the run has ended; one that is over is shown once. Where
    there is no terminal it prints a block for each change.
    """
    from lightning_hangcheck.live_view.run_follower import RunFollower
    from lightning_hangcheck.live_view.view_text import show_run

    folder = found_run_folder(run_dir, "hangcheck watch RUN_DIR")
    show_run(RunFollower(folder, run_dir or as_typed(folder.path)).read, sys.stdout)
    return 0
