"""`hangcheck run` and `demo`: start a command and watch all ranks that it starts."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import INTERRUPTED, say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.rundir import RUNS_FOLDER
from lightning_hangcheck.settings import LEAST_SECRET, SHARED_BY_NODES, Settings
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Sequence

FOLDER_LIMIT_S = 1.0
VARIABLES = (
    "Each option has a variable: HANGCHECK_STALL_TIMEOUT and so on. docs/settings.md lists all "
    "settings.\n\n"
)
EXAMPLES = cli.examples(
    "hangcheck run -- torchrun --nproc_per_node=2 train.py",
    "hangcheck run --on-hang abort --run-dir my-run -- python train.py",
    "HANGCHECK_STALL_TIMEOUT=600 srun hangcheck run -- python train.py",
)
EXEC = "Run CMD with sh, for 60 s at most"
NOTIFY = "Send a message on a hang; repeatable"


@cli.command(
    "run", cls=cli.GroupedCommand, epilog=VARIABLES + EXAMPLES, context_settings=cli.BEFORE_DASHES
)
@cli.setting_options(*cli.OF_RUN)
@cli.option("--on-hang-exec", "CMD", EXEC, cli.ON_HANG, envvar="HANGCHECK_ON_HANG_EXEC")
@cli.many("--notify", "URL", NOTIFY, cli.TOLD, envvar="HANGCHECK_NOTIFY")
@cli.command_behind_dashes()
def run(
    command: tuple[str, ...], on_hang_exec: str | None, notify: tuple[str, ...], **options: object
) -> int:
    """Run any launcher unchanged; say which rank hangs, where, and why.

    Output and exit code are the command's own; 75 if ended because of a hang.
    """
    example = "hangcheck run -- torchrun --nproc_per_node=2 train.py"
    cli.refuse_empty("run", command, "a command to run", f"it behind two dashes: {example}")
    settings = cli.settings_from(options)
    if settings.nodes_port is not None and len(os.environ.get(SHARED_BY_NODES, "")) < LEAST_SECRET:
        # without the secret, strangers could send messages there
        raise BadUsage(
            f"--nodes-port needs a secret of {LEAST_SECRET} characters or more, the same on all "
            "nodes",
            f"export {SHARED_BY_NODES}=$(openssl rand -hex 16) where the job is started",
        )
    if settings.prometheus is not None and not settings.disable:
        _refuse_unwritable(settings.prometheus)
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


def _refuse_unwritable(prometheus: str) -> None:
    file = Path(prometheus).absolute()
    try:
        there, is_file = within(FOLDER_LIMIT_S, lambda: (file.parent.is_dir(), not file.is_dir()))
    except NoAnswer:  # storage that does not answer is not reported here
        return
    if not there:
        sentence = f"--prometheus {prometheus}: its folder is not there"
        raise BadUsage(sentence, "make it, or name another file")
    if not is_file:
        raise BadUsage(f"--prometheus {prometheus}: it is a folder", "name a file in it")


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
    # imported here so that `hangcheck run --help` needs no part of the sidecar
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


@cli.command("demo", "hangcheck demo")
def demo() -> int:
    """See a verdict within 10 s: two processes each hold a lock that the other one wants.

    It needs no torch and no rights. The job is watched as `hangcheck run --on-hang abort` watches
    one, and ended with the verdict. Exit code 0; 1 if no verdict came.
    """
    from lightning_hangcheck.launch.run import ABORTED

    folder = Path(tempfile.mkdtemp(prefix="hangcheck-demo-"))
    shutil.copyfile(Path(__file__).parent / "demo_job.py", folder / "train.py")
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
