"""`hangcheck postmortem`: a verdict on a job that is gone, from what is left of it."""

from __future__ import annotations

import click

from lightning_hangcheck.cli.options import option, run_dir_option
from lightning_hangcheck.cli.showing import HANG, as_typed, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.postmortem.postmortem import postmortem as look_at
from lightning_hangcheck.report import postmortem_text, verdict_text
from lightning_hangcheck.rundir import name_run_folder, refuse_used

EPILOG = """\b
Examples:
  hangcheck postmortem .
  hangcheck postmortem dumps/ slurm-4711.out
  hangcheck postmortem node0-run node1-run --json
"""


@click.command("postmortem", epilog=EPILOG)
@click.argument("paths", nargs=-1, metavar="PATH...")
@run_dir_option("OUT")
@option("--json as_json", None, "Print the verdict alone, as JSON.")
def postmortem(paths: tuple[str, ...], run_dir: str | None, as_json: bool) -> int:
    """Explain a job that is gone: who held it up, and why, from the files that it left.

    Files are known by their content: logs, torch's flight-record dumps, stack dumps, and run
    folders of several nodes. Folders are searched. No torch is needed. Exit code 0 if nothing wrong
    is seen, 3 if a hang, death or crash is explained, also in part, 2 if nothing can be read.
    """
    if not paths:
        raise BadUsage(
            "postmortem needs files or folders of the job",
            "write for example: hangcheck postmortem .",
        )
    folder = name_run_folder(run_dir)
    refuse_used(folder)
    found = look_at(paths, folder)
    if as_json:
        click.echo(encode_pretty(found.verdict), nl=False)
    else:
        report = verdict_text.render(found.case, found.verdict, run_dir or as_typed(folder.path))
        show(postmortem_text.render(found.verdict, found.left) + report)
    return 0 if found.verdict.verdict in ("healthy", "finished", "recovered") else HANG
