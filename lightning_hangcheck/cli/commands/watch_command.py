"""`hangcheck watch`: a run as it goes on, in another terminal."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli.showing import as_typed, found_run_folder
from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from lightning_hangcheck.live_view.run_follower import RunFollower

EPILOG = """\b
Examples:
  hangcheck watch
  hangcheck watch hangcheck_runs/20261120T102301-7f3a
  hangcheck watch | tee watch.log
  hangcheck watch --tui
"""


@click.command("watch", epilog=EPILOG)
@click.argument("run_dir", required=False, metavar="[RUN_DIR]")
@click.option("--tui", "browse", is_flag=True, help="Choose a rank, see its stack, filter, pause.")
def watch(run_dir: str | None, *, browse: bool) -> int:
    """Show a run as it goes on: the newest verdict, and below it a row a rank, problems first.

    Without RUN_DIR it is the newest run below hangcheck_runs/. It only looks: the run goes on
    unchanged, and Ctrl-C ends the view alone. It ends by itself when the run has ended; one that
    is over is shown once. Where there is no terminal it prints a block for each change.
    """
    # imported here, so that the help of all commands need not load what looks at processes
    from lightning_hangcheck.live_view.run_follower import RunFollower
    from lightning_hangcheck.live_view.terminal_view import show_run

    folder = found_run_folder(run_dir, "hangcheck watch RUN_DIR")
    follower = RunFollower(folder, run_dir or as_typed(folder.path))
    try:
        if browse:
            _browse(follower)
        else:
            show_run(follower.read, sys.stdout)
    finally:
        follower.close()
    return 0


def _browse(follower: RunFollower) -> None:
    """Let the reader choose ranks.

    Raises:
        BadUsage: There is no terminal, or the extra is not installed.
    """
    if find_spec("textual") is None:
        raise BadUsage("--tui needs textual", "pip install 'lightning-hangcheck[tui]'")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadUsage("--tui needs a terminal", "leave it out: hangcheck watch prints plain lines")
    from lightning_hangcheck.live_view.browser import RunBrowser

    RunBrowser(follower.read(), follower.read).run()
