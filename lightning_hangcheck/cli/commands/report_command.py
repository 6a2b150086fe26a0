"""`hangcheck report`: what a run's folder says, while the run goes on or afterwards."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from lightning_hangcheck.cli.showing import as_typed, show
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.verdict import Gap
from lightning_hangcheck.report import terminal, unjudged
from lightning_hangcheck.report.plain_logs.log_report import log_report
from lightning_hangcheck.report.running_ranks import render_below
from lightning_hangcheck.report.saved_run import PART_LIMIT_S, SavedRun, read_saved_run
from lightning_hangcheck.rundir.layout import RUNS_FOLDER, find_run_folder

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir.layout import RunFolder


EPILOG = """\b
Examples:
  hangcheck report
  hangcheck report hangcheck_runs/20261120T102301-7f3a
  hangcheck report --json > verdict.json
  hangcheck report --log slurm-4711.out
"""


@click.command("report", epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="[RUN_DIR | FILE...]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, for programs.")
@click.option(
    "--log", "of_logs", is_flag=True, help="Read plain logs: who is behind by the ranks' own lines."
)
def report(paths: tuple[str, ...], *, as_json: bool, of_logs: bool) -> int:
    """Print the newest verdict of a run.

    Without RUN_DIR it is the newest run below hangcheck_runs/. A run that has no verdict yet shows
    each rank's last checkpoint instead; one that goes on also where each rank is now, and its pace.
    With --log the arguments are log files, SLURM's too. Exit code 2 if the folder or a file cannot
    be used.
    """
    if of_logs:
        click.echo(_of_logs(paths, as_json=as_json), nl=False)
        return 0
    if len(paths) > 1:
        raise BadUsage(
            "report takes one run folder", "hangcheck report RUN_DIR, or for logs: --log FILE..."
        )
    # imported here, so that the help of all commands need not load what looks at processes
    from lightning_hangcheck.attach.running_job import running_ranks

    run_dir = paths[0] if paths else None
    folder = _find(run_dir)
    shown_folder = run_dir or as_typed(folder.path)
    saved = read_saved_run(folder)
    if as_json:
        click.echo(_json(saved, shown_folder), nl=False)
    elif saved.verdict is None:
        click.echo(unjudged.render(saved, shown_folder, running_ranks(folder)), nl=False)
    else:
        judged = replace(saved.verdict, gaps=(*saved.verdict.gaps, *map(Gap.of, saved.gaps)))
        show(terminal.render(saved.case, judged, shown_folder))
        click.echo(render_below(running_ranks(folder), datetime.now(timezone.utc)), nl=False)
    return 0


def _of_logs(paths: tuple[str, ...], *, as_json: bool) -> str:
    if not paths:
        raise BadUsage("no log is named", "hangcheck report --log FILE...")
    if as_json:
        raise BadUsage("logs hold no verdict to print as JSON", "leave out --json")
    return log_report([Path(path) for path in paths])


def _find(run_dir: str | None) -> RunFolder:
    try:
        return apart(PART_LIMIT_S, lambda: find_run_folder(run_dir))
    except (NoAnswerFromStorage, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UnreadableRun(
            f"{run_dir or RUNS_FOLDER} cannot be read ({why})",
            "name a run folder that you may read: hangcheck report RUN_DIR",
        ) from error


def _json(saved: SavedRun, shown_folder: str) -> str:
    if saved.verdict is None:
        raise UnreadableRun(
            saved.refused or f"{shown_folder} has no verdict yet",
            "leave out --json to see each rank's last checkpoint",
        )
    return render_json(saved.verdict)


def render_json(verdict: Verdict) -> str:
    """Write the verdict as indented JSON that follows docs/verdict.schema.json."""
    return encode_pretty(verdict).decode()
