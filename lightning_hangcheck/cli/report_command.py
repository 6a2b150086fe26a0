"""`hangcheck report`: what a run's folder says, while the run goes on or afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from lightning_hangcheck.cli.showing import as_typed, show
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.verdict import Gap
from lightning_hangcheck.report import terminal, unjudged
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
"""


@click.command("report", epilog=EPILOG)
@click.argument("run_dir", required=False, metavar="[RUN_DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, for programs.")
def report(run_dir: str | None, *, as_json: bool) -> int:
    """Print the newest verdict of a run.

    Without RUN_DIR it is the newest run below hangcheck_runs/. A run that has no verdict yet shows
    each rank's last checkpoint instead. Exit code 2 if the folder cannot be used.
    """
    folder = _find(run_dir)
    shown_folder = run_dir or as_typed(folder.path)
    saved = read_saved_run(folder)
    if as_json:
        click.echo(_json(saved, shown_folder), nl=False)
    elif saved.verdict is None:
        click.echo(unjudged.render(saved, shown_folder), nl=False)
    else:
        judged = replace(saved.verdict, gaps=(*saved.verdict.gaps, *map(Gap.of, saved.gaps)))
        show(terminal.render(saved.case, judged, shown_folder))
    return 0


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
