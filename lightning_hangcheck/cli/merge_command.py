"""`hangcheck merge`: one verdict from the run folders of several nodes."""

from __future__ import annotations

from pathlib import Path

import click

from lightning_hangcheck.attach.several_nodes import merge_runs
from lightning_hangcheck.cli.exit_codes import exit_code_of
from lightning_hangcheck.cli.options import run_dir_option
from lightning_hangcheck.cli.showing import kept_in, say, show
from lightning_hangcheck.errors import BadUsage, NoJobFound, UnreadableRun
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.rundir import name_run_folder, refuse_used

EPILOG = """\b
Examples:
  hangcheck merge node0-run node1-run
  hangcheck merge node*-run --run-dir whole-job
"""


@click.command("merge", epilog=EPILOG)
@click.argument("folders", nargs=-1, metavar="DIR...")
@run_dir_option("OUT")
def merge(folders: tuple[str, ...], run_dir: str | None) -> int:
    """Join what attach or run wrote on several nodes into one verdict.

    Exit code 0 if no hang was found, 3 if the job hangs, 4 if no folder holds a job, 2 if one is
    not there. Folders without a job are named and left out, and so are files.
    """
    files = [name for name in folders if Path(name).is_file()]
    for name in files:
        say(f"left out: {name} is a file, not a run folder")
    folders = tuple(name for name in folders if name not in files)
    if not folders:
        raise BadUsage(
            "merge needs the run folders of the nodes",
            "write for example: hangcheck merge node0-run node1-run",
        )
    folder = name_run_folder(run_dir)
    refuse_used(folder)
    try:
        merged = merge_runs(folders, folder)
    except UnreadableRun as error:
        if all(Path(name).is_dir() for name in folders):
            raise NoJobFound(str(error.args[0]), error.remedy) from error
        raise
    show(verdict_text.render(merged.case, merged.verdict, kept_in(merged.kept)))
    for gap in merged.left_out:
        say(f"left out: {gap.reason}")
    return exit_code_of(merged.verdict)
