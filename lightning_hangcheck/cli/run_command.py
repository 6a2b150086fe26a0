"""`hangcheck run`: start a command and watch all ranks that it starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli.options import (
    OF_RUN,
    ON_HANG,
    OWN_WORDS,
    TOLD,
    GroupedCommand,
    command_behind_dashes,
    many,
    option,
    setting_options,
    settings_from,
)
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.rundir import RUNS_FOLDER
from lightning_hangcheck.settings import LEAST_SECRET, SHARED_BY_NODES
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.settings import Settings

FOLDER_LIMIT_S = 1.0
EPILOG = """\
Each option has a variable: HANGCHECK_STALL_TIMEOUT and so on. docs/settings.md lists all settings.

\b
Examples:
  hangcheck run -- torchrun --nproc_per_node=2 train.py
  hangcheck run --on-hang abort --run-dir my-run -- python train.py
  HANGCHECK_STALL_TIMEOUT=600 srun hangcheck run -- python train.py
"""


@click.command("run", cls=GroupedCommand, epilog=EPILOG, context_settings=OWN_WORDS)
@setting_options(*OF_RUN)
@option(
    "--on-hang-exec",
    "CMD",
    "Run CMD with sh, for 60 s at most",
    ON_HANG,
    envvar="HANGCHECK_ON_HANG_EXEC",
)
@many("--notify", "URL", "Send a message on a hang; repeatable", TOLD, envvar="HANGCHECK_NOTIFY")
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
    if settings.nodes_port is not None and len(os.environ.get(SHARED_BY_NODES, "")) < LEAST_SECRET:
        # without the secret, strangers could send messages there
        raise BadUsage(
            f"--nodes-port needs a secret of {LEAST_SECRET} characters or more, the same on all "
            "nodes",
            f"export {SHARED_BY_NODES}=$(openssl rand -hex 16) where the job is started",
        )
    if settings.prometheus is not None and not settings.disable:
        file = Path(settings.prometheus).absolute()
        try:
            there, is_file = within(
                FOLDER_LIMIT_S, lambda: (file.parent.is_dir(), not file.is_dir())
            )
        except NoAnswer:  # storage that does not answer is not reported here
            there = is_file = True
        if not (there and is_file):
            wrong = "it is a folder" if there else "its folder is not there"
            way_out = "name a file in it" if there else "make it, or name another file"
            raise BadUsage(f"--prometheus {settings.prometheus}: {wrong}", way_out)
    if settings.price is not None and not settings.disable:
        from lightning_hangcheck.ledger.spending import read_prices

        read_prices([settings.price])
    if not (settings.disable or settings.quiet):
        # say before the run what its verdict will lack, and how to fix that
        from lightning_hangcheck.doctor.every_run_checks import checks_before_run

        for check in checks_before_run(Path(settings.run_dir or RUNS_FOLDER), os.environ):
            if check.status != "ok":
                say(f"{check.found}; {check.remedy}")
    return run_watched(command, settings, notify, on_hang_exec)


def run_watched(
    command: Sequence[str],
    settings: Settings,
    notify: tuple[str, ...] = (),
    on_hang_exec: str | None = None,
) -> int:
    """Run a command as `hangcheck run` does with these settings; return its exit code.

    Raises:
        BadUsage: Alerts cannot be sent: a package is missing, or an address is unknown.
    """
    # imported here so that `hangcheck report` needs no part of the sidecar
    from lightning_hangcheck.alerts import AlertsAskedFor, apprise_packages
    from lightning_hangcheck.doctor.launch_command import job_of_nodes
    from lightning_hangcheck.hooks.being_watched import injected
    from lightning_hangcheck.launch.run import run_command

    alerts = AlertsAskedFor()
    if (notify or on_hang_exec is not None) and not settings.disable:
        alerts = AlertsAskedFor(
            notify=notify,
            on_hang_exec=on_hang_exec,
            environment=dict(os.environ),
            packages=apprise_packages(notify),
        )
    given = {"PYTHONPATH": injected(os.environ.get("PYTHONPATH"))}
    job = job_of_nodes(command, os.environ)
    return run_command(command, settings, given, alerts, job.place, job.name, job.store)
