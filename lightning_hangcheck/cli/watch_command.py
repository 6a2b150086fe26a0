"""`hangcheck watch`: follow a run live, in another terminal."""

from __future__ import annotations

import sys

import click

from lightning_hangcheck.cli.showing import as_typed, found_run_folder
from lightning_hangcheck.live_view.run_follower import RunFollower
from lightning_hangcheck.live_view.view_text import show_run

EPILOG = """\b
Examples:
  hangcheck watch
  hangcheck watch hangcheck_runs/20261120T102301-7f3a
  hangcheck watch | tee watch.log
"""


@click.command("watch", epilog=EPILOG)
@click.argument("run_dir", required=False, metavar="[RUN_DIR]")
def watch(run_dir: str | None) -> int:
    """Show a run as it goes on: the newest verdict, then a row per rank, problems first.

    Without RUN_DIR it is the newest run below hangcheck_runs/. It only reads, and Ctrl-C ends the
    view alone. It ends by itself when the run has ended; one that is over is shown once. Where
    there is no terminal it prints a block for each change.
    """
    folder = found_run_folder(run_dir, "hangcheck watch RUN_DIR")
    follower = RunFollower(folder, run_dir or as_typed(folder.path))
    show_run(follower.read, sys.stdout)
    return 0
