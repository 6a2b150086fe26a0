"""`hangcheck postmortem`: a verdict on a job that is gone, from what is left of it."""

from __future__ import annotations

import os

import click

from lightning_hangcheck.cli.showing import HANG, as_typed, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.left_behind_text import last_words, three_lines, what_was_read
from lightning_hangcheck.rundir import name_run_folder, refuse_used
from lightning_hangcheck.settings import from_environment

NOTHING_WRONG = ("healthy", "finished", "recovered")
EPILOG = """\b
Examples:
  hangcheck postmortem .
  hangcheck postmortem dumps/ slurm-4711.out
  hangcheck postmortem node0-run node1-run --json
"""


@click.command("postmortem", epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="PATH...")
@click.option(
    "--run-dir",
    metavar="OUT",
    default=None,
    help="Run folder [default: a new one below hangcheck_runs]. (HANGCHECK_RUN_DIR)",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict alone, as JSON.")
def postmortem(paths: tuple[str, ...], run_dir: str | None, as_json: bool) -> int:
    """Say who held a job up that is gone, and why, from the files that it left.

    Files are known by their content: logs, torch's flight-record dumps, stack dumps, and run
    folders of several nodes. Folders are searched. No torch is needed. Exit code 0 if nothing wrong
    is seen, 3 if a hang, death or crash is explained, also in part, 2 if nothing can be read.
    """
    if not paths:
        raise BadUsage(
            "postmortem needs files or folders of the job",
            "write for example: hangcheck postmortem .",
        )
    folder = name_run_folder(run_dir or from_environment(os.environ).run_dir)
    refuse_used(folder)
    # imported here so that the other commands need no part of the sidecar
    from lightning_hangcheck.model.codec import encode_pretty
    from lightning_hangcheck.postmortem.postmortem import postmortem as look_at

    found = look_at(paths, folder)
    if as_json:
        click.echo(encode_pretty(found.verdict), nl=False)
    else:
        lines = [*three_lines(found.verdict), "", *last_words(found.left)]
        lines += [*what_was_read(found.left), ""]
        report = verdict_text.render(found.case, found.verdict, run_dir or as_typed(folder.path))
        show("\n".join(lines) + "\n" + report)
    return 0 if found.verdict.verdict in NOTHING_WRONG else HANG
