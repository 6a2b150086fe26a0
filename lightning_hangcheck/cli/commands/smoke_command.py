"""`hangcheck smoke`: minimal runs in turn, and what it says which of them hangs."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import click
from msgspec.structs import replace

from lightning_hangcheck.cli.options import positive
from lightning_hangcheck.cli.showing import HANG, as_typed, say
from lightning_hangcheck.rundir import RunFolder, name_run_folder
from lightning_hangcheck.settings import from_environment

if TYPE_CHECKING:
    from lightning_hangcheck.smoke.sequence import Outcome, Trial

EPILOG = """\b
Examples:
  hangcheck smoke
  hangcheck smoke -- torchrun --nproc_per_node={devices} train.py --num_workers {workers}
  hangcheck smoke --limit 60 -- python train.py --devices {devices}
"""


@click.command("smoke", epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.option(
    "--limit",
    "limit_s",
    metavar="SECONDS",
    default="300",
    show_default=True,
    callback=positive,
    help="Time that each run may take.",
)
@click.option(
    "--run-dir",
    metavar="DIR",
    default=None,
    help="Run folders DIR-... [default: new ones below hangcheck_runs]. (HANGCHECK_RUN_DIR)",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- CMD...]")
def smoke(command: tuple[str, ...], limit_s: float, run_dir: str | None) -> int:
    """Run a job with 2 ranks and 0 workers, with 1 worker, and as 1 process; say what hangs.

    In CMD, {devices} and {workers} stand for these numbers. Without CMD it is the reference script.
    Exit code 0 if all runs passed, 3 if one hung, failed, or went over its limit, 2 if CMD cannot
    be started.
    """
    # whoever ends us, as timeout(1) and CI systems do, ends the run that goes on as well
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    root = name_run_folder(run_dir or from_environment(os.environ).run_dir)
    trials = _plan(command, root)
    from lightning_hangcheck.launch.job import refuse_unstartable

    for trial in trials:
        refuse_unstartable(trial.command, "smoke")
    outcomes = [_run(trial, root, limit_s) for trial in trials]
    # imported here so that the other commands need no part of it
    from lightning_hangcheck.smoke import sequence

    click.echo(sequence.render(outcomes), nl=False)
    return 0 if all(outcome.result == "passed" for outcome in outcomes) else HANG


def _plan(command: tuple[str, ...], root: RunFolder) -> tuple[Trial, ...]:
    from lightning_hangcheck.smoke.sequence import plan_trials, reference_trials

    if command:
        return plan_trials(command)
    return reference_trials(root.path.with_name(f"{root.run_id}-reference"))


def _run(trial: Trial, root: RunFolder, limit_s: float) -> Outcome:
    from lightning_hangcheck.smoke.sequence import run_trial

    path = root.path.with_name(f"{root.run_id}-{trial.slug}")
    say(f"{trial.name}: runs, for {limit_s:g} s at most")
    outcome = run_trial(trial, RunFolder(path), limit_s)
    return replace(outcome, run_folder=as_typed(path))
