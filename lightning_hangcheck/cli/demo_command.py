"""`hangcheck demo`: a verdict on two small processes that block each other."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from lightning_hangcheck.cli.exit_codes import INTERRUPTED
from lightning_hangcheck.cli.run_command import run_watched
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.launch.run import ABORTED
from lightning_hangcheck.settings import Settings

JOB = Path(__file__).parent / "demo_job.py"
EPILOG = """\b
Examples:
  hangcheck demo
"""


@click.command("demo", epilog=EPILOG)
def demo() -> int:
    """See a verdict within 10 s: two processes each hold a lock that the other one wants.

    It needs no torch and no rights. The job is watched as `hangcheck run --on-hang abort` watches
    one, and ended with the verdict. Exit code 0; 1 if no verdict came.
    """
    folder = Path(tempfile.mkdtemp(prefix="hangcheck-demo-"))
    shutil.copyfile(JOB, folder / "train.py")
    before = Path.cwd()
    os.chdir(folder)
    try:
        settings = Settings(run_dir=str(folder / "run"), on_hang="abort", abort_grace=1.0)
        code = run_watched([sys.executable, "train.py"], settings)
    finally:
        os.chdir(before)
    if code == INTERRUPTED:
        raise click.Abort
    if code != ABORTED:
        say(f"no verdict came (exit code {code}); what was seen: hangcheck report {folder}/run")
        return 1
    click.echo(f"\nthe page of this verdict: {folder}/run/report.html")
    click.echo("for a job of yours:       hangcheck run -- torchrun --nproc_per_node=2 train.py")
    return 0
