"""`hangcheck smoke`: minimal runs in turn, to find which of them hangs."""

from __future__ import annotations

from typing import Any

import click
from msgspec.structs import replace

from lightning_hangcheck.cli.exit_codes import HANG
from lightning_hangcheck.cli.options import (
    OWN_WORDS,
    command_behind_dashes,
    end_on_sigterm,
    option,
    positive,
    run_dir_option,
)
from lightning_hangcheck.cli.showing import as_typed, say
from lightning_hangcheck.launch.run import refuse_unstartable
from lightning_hangcheck.rundir import RunFolder, name_run_folder
from lightning_hangcheck.smoke import plan_trials, reference_trials, render, run_trial

EPILOG = """\b
Examples:
  hangcheck smoke
  hangcheck smoke -- torchrun --nproc_per_node={devices} train.py --num_workers {workers}
  hangcheck smoke --limit 60 -- python train.py --devices {devices}
"""
LIMIT: dict[str, Any] = {"callback": positive, "default": "300", "show_default": True}


@click.command("smoke", epilog=EPILOG, context_settings=OWN_WORDS)
@option("--limit limit_s", "SECONDS", "Time that each run may take.", **LIMIT)
@run_dir_option("DIR", "Run folders DIR-...", "new ones")
@command_behind_dashes("[-- CMD...]")
def smoke(command: tuple[str, ...], limit_s: float, run_dir: str | None) -> int:
    """Run a job with 2 ranks and 0 workers, with 1 worker, and as 1 process; say what hangs.

    In CMD, {devices} and {workers} stand for these numbers. Without CMD it is the reference script.
    Exit code 0 if all runs passed, 3 if one hung, failed, or went over its limit, 2 if CMD cannot
    be started.
    """
    end_on_sigterm()
    root = name_run_folder(run_dir)
    reference = root.path.with_name(f"{root.run_id}-reference")
    trials = plan_trials(command) if command else reference_trials(reference)
    for trial in trials:
        refuse_unstartable(trial.command, "smoke")
    outcomes = []
    for trial in trials:
        path = root.path.with_name(f"{root.run_id}-{trial.slug}")
        say(f"{trial.name}: runs, for {limit_s:g} s at most")
        outcome = run_trial(trial, RunFolder(path), limit_s)
        outcomes.append(replace(outcome, run_folder=as_typed(path)))
    click.echo(render(outcomes), nl=False)
    return 0 if all(outcome.result == "passed" for outcome in outcomes) else HANG
