"""`hangcheck run`: start a command and watch every rank that it becomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli.alert_options import alert_options, alerts_from, made_ready
from lightning_hangcheck.cli.options import (
    refuse_without_folder,
    refuse_without_secret,
    settings_from,
    settings_options,
)
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.rundir.layout import RUNS_FOLDER

if TYPE_CHECKING:
    from lightning_hangcheck.settings import Settings

EPILOG = """\b
Examples:
  hangcheck run -- torchrun --nproc_per_node=2 train.py
  hangcheck run --on-hang abort --run-dir my-run -- python train.py
  hangcheck run --quiet -- accelerate launch train.py
  hangcheck run --slow-after 60 -- torchrun --nproc_per_node=2 train.py
  HANGCHECK_STALL_TIMEOUT=600 srun hangcheck run -- python train.py
  srun hangcheck run --on-hang-exec 'scontrol requeue $SLURM_JOB_ID' -- python train.py
  hangcheck run --prometheus /var/lib/node_exporter/job.prom -- python train.py
  HANGCHECK_NOTIFY=slack://... hangcheck run -- torchrun --nproc_per_node=2 train.py
"""


@click.command("run", epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@settings_options
@alert_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="-- CMD...")
def run(command: tuple[str, ...], **options: object) -> int:
    """Run any launcher unchanged and say which rank hangs, where, why, and what to do.

    The command's output and exit code pass through; 75 if the job was ended because of a hang.
    """
    if not command:
        raise BadUsage(
            "run needs a command to run",
            "write it behind two dashes: hangcheck run -- torchrun --nproc_per_node=2 train.py",
        )
    alerts = alerts_from(options)
    settings = settings_from(options)
    refuse_without_secret(settings)
    if not settings.disable:
        refuse_without_folder("--prometheus", settings.prometheus)
        alerts = made_ready(alerts)
    if not (settings.disable or settings.quiet):
        _warn(settings)
    # imported here so that `hangcheck report` needs no part of the sidecar
    from lightning_hangcheck.doctor.launching.node_place import (
        job_of_nodes,
        launchers_store,
        node_place,
    )
    from lightning_hangcheck.hooks.zero_code.start import injected
    from lightning_hangcheck.launch.run import run_command

    given = {"PYTHONPATH": injected(os.environ.get("PYTHONPATH"))}
    place = node_place(command, os.environ)
    job = job_of_nodes(command, os.environ)
    store = launchers_store(command, os.environ)
    return run_command(command, settings, given, alerts, place, job, store)


def _warn(settings: Settings) -> None:
    """Say before the run what will be missing from its verdict, and how to mend it."""
    from lightning_hangcheck.doctor.before_run import checks_before_run

    folder = Path(settings.run_dir or RUNS_FOLDER)
    for check in checks_before_run(folder, os.environ):
        if check.status != "ok":
            say(f"{check.sentence}; {check.remedy}")
