"""`hangcheck run`: start a command and watch every rank that it becomes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli.options import (
    ON_HANG,
    SETTINGS_NOTE,
    TOLD,
    GroupedCommand,
    command_behind_dashes,
    option,
    refuse_without_folder,
    refuse_without_secret,
    run_options,
    settings_from,
)
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.rundir import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.alerts.alert_settings import AlertsAskedFor
    from lightning_hangcheck.settings import Settings

EPILOG = f"""{SETTINGS_NOTE}

\b
Examples:
  hangcheck run -- torchrun --nproc_per_node=2 train.py
  hangcheck run --on-hang abort --run-dir my-run -- python train.py
  HANGCHECK_STALL_TIMEOUT=600 srun hangcheck run -- python train.py
"""


@click.command(
    "run", cls=GroupedCommand, epilog=EPILOG, context_settings={"allow_interspersed_args": False}
)
@run_options
@option(
    "--on-hang-exec",
    "CMD",
    "Run CMD with sh, for 60 s at most",
    ON_HANG,
    envvar="HANGCHECK_ON_HANG_EXEC",
)
@option(
    "--notify",
    "URL",
    "Send a message on a hang; repeatable",
    TOLD,
    multiple=True,
    envvar="HANGCHECK_NOTIFY",
)
@command_behind_dashes()
def run(
    command: tuple[str, ...], on_hang_exec: str | None, notify: tuple[str, ...], **options: object
) -> int:
    """Run any launcher unchanged; say which rank hangs, where, and why.

    Output and exit code are the command's own; 75 if ended because of a hang.
    """
    if not command:
        raise BadUsage(
            "run needs a command to run",
            "write it behind two dashes: hangcheck run -- torchrun --nproc_per_node=2 train.py",
        )
    settings = settings_from(options)
    refuse_without_secret(settings)
    if not settings.disable:
        refuse_without_folder("--prometheus", settings.prometheus)
    if not (settings.disable or settings.quiet):
        # before the run, what will be missing from its verdict, and how to mend it
        from lightning_hangcheck.doctor.seeing_checks import checks_before_run

        for check in checks_before_run(Path(settings.run_dir or RUNS_FOLDER), os.environ):
            if check.status != "ok":
                say(f"{check.sentence}; {check.remedy}")
    return run_watched(command, settings, notify, on_hang_exec)


def run_watched(
    command: Sequence[str],
    settings: Settings,
    notify: tuple[str, ...] = (),
    on_hang_exec: str | None = None,
) -> int:
    """Run a command as `hangcheck run` does with these settings; return its exit code."""
    # imported here so that `hangcheck report` needs no part of the sidecar
    from lightning_hangcheck.doctor.launch_command import job_of_nodes
    from lightning_hangcheck.hooks.zero_code.start import injected
    from lightning_hangcheck.launch.run import run_command

    alerts = alerts_of(notify, on_hang_exec, settings)
    given = {"PYTHONPATH": injected(os.environ.get("PYTHONPATH"))}
    job = job_of_nodes(command, os.environ)
    return run_command(command, settings, given, alerts, job.place, job.name, job.store)


def alerts_of(
    notify: tuple[str, ...], on_hang_exec: str | None, settings: Settings
) -> AlertsAskedFor:
    """Say whom to tell of a hang; what would fail in the night is refused at the start.

    Raises:
        BadUsage: A message could not be sent: a package is missing, or an address unknown.
    """
    from lightning_hangcheck.alerts.alert_settings import AlertsAskedFor

    if settings.disable or not (notify or on_hang_exec is not None):
        return AlertsAskedFor()
    packages: tuple[str, ...] = ()
    if notify:
        from lightning_hangcheck.alerts import messenger

        packages = (messenger.apprise_folder(),)
        messenger.refuse_unknown(notify)
    return AlertsAskedFor(
        notify=notify, on_hang_exec=on_hang_exec, environment=dict(os.environ), packages=packages
    )
