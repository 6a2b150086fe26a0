"""`hangcheck rehearse` and `smoke`: run a command in small variants, to see which of them hangs."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec.structs import replace

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import HANG, as_typed, say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.launch.run import refuse_unstartable
from lightning_hangcheck.rehearse import NAMES, play_all
from lightning_hangcheck.rehearse import render as render_rehearsed
from lightning_hangcheck.rundir import RunFolder, name_run_folder
from lightning_hangcheck.smoke import plan_trials, reference_trials, render, run_trial

SCENES = """

\b
Scenes: fewer-samples, no-samples, smaller-last-batch, unusable-batch,
  non-finite-loss, save-fails, save-slow, early-stop, sigterm, no-workers,
  one-worker; as-it-is always comes first.
"""
EXAMPLES = cli.examples(
    "hangcheck rehearse -- torchrun --nproc_per_node=8 train.py",
    "hangcheck rehearse -- python train.py --config small.yaml",
    "hangcheck rehearse --scene save-fails --scene early-stop -- accelerate launch train.py",
)
BATCHES = "Most batches of a pass over a DataLoader."


def _limit(text: str, usual: str) -> cli.Decorator:
    facts: dict[str, Any] = {"callback": cli.positive, "default": usual, "show_default": True}
    return cli.option("--limit limit_s", "SECONDS", text, **facts)


@cli.command("rehearse", epilog=EXAMPLES + SCENES, context_settings=cli.BEFORE_DASHES)
@cli.option(
    "--ranks", "N", "CPU ranks to run it on.", type=cli.Whole(2, 16), default=2, show_default=True
)
@cli.option("--batches", "N", BATCHES, type=cli.Whole(2, 1000), default=4, show_default=True)
@cli.many("--scene scenes", "NAME", "Only this scene; may be repeated.")
@_limit("Time that each scene may take at most.", "600")
@cli.option("--json as_json", None, "Print one JSON object.")
@cli.run_dir_option("DIR", "Run folders DIR-...", "new ones")
@cli.command_behind_dashes()
def rehearse(
    command: tuple[str, ...],
    *,
    scenes: tuple[str, ...],
    as_json: bool,
    run_dir: str | None,
    **limits: Any,  # noqa: ANN401 - as `play_all` takes them, by their names
) -> int:
    """Run CMD on 2 CPU ranks with few batches, and provoke in turn what makes them diverge.

    What the program does not have is skipped. No file is changed; GPUs are hidden.
    Exit code 0 if no scene hung, 3 if one did, 2 if CMD cannot be rehearsed.
    """
    example = "hangcheck rehearse -- torchrun train.py"
    cli.refuse_empty("rehearse", command, "a command to run", f"it behind two dashes: {example}")
    unknown = [name for name in scenes if name not in NAMES]
    if unknown:
        raise BadUsage(f"there is no scene {unknown[0]!r}", f"name one of: {', '.join(NAMES)}")
    refuse_unstartable(command, "rehearse")
    cli.end_on_sigterm()
    rehearsed = play_all(
        command,
        wanted=scenes,
        root=name_run_folder(run_dir),
        **limits,
        shown=as_typed,
        say=say,
    )
    if as_json:
        facts = {"schema_version": 1, **msgspec.to_builtins(rehearsed)}
        click.echo(msgspec.json.format(msgspec.json.encode(facts)))
    else:
        click.echo(render_rehearsed(rehearsed), nl=False)
    return HANG if rehearsed.hung else 0


@cli.command(
    "smoke",
    "hangcheck smoke",
    "hangcheck smoke -- torchrun --nproc_per_node={devices} train.py --num_workers {workers}",
    "hangcheck smoke --limit 60 -- python train.py --devices {devices}",
    context_settings=cli.BEFORE_DASHES,
)
@_limit("Time that each run may take.", "300")
@cli.run_dir_option("DIR", "Run folders DIR-...", "new ones")
@cli.command_behind_dashes("[-- CMD...]")
def smoke(command: tuple[str, ...], limit_s: float, run_dir: str | None) -> int:
    """Run a job with 2 ranks and 0 workers, with 1 worker, and as 1 process; say what hangs.

    In CMD, {devices} and {workers} stand for these numbers. Without CMD it is the reference script.
    Exit code 0 if all runs passed, 3 if one hung, failed, or went over its limit, 2 if CMD cannot
    be started.
    """
    cli.end_on_sigterm()
    root = name_run_folder(run_dir)
    reference = root.path.with_name(f"{root.run_id}-reference")
    trials = plan_trials(command) if command else reference_trials(reference)
    for trial in trials:
        refuse_unstartable(trial.command, "smoke")
    outcomes = []
    for trial in trials:
        path = root.path.with_name(f"{root.run_id}-{trial.slug}")
        say(f"{trial.name}: running, for {limit_s:g} s at most")
        outcome = run_trial(trial, RunFolder(path), limit_s)
        outcomes.append(replace(outcome, run_folder=as_typed(path)))
    click.echo(render(outcomes), nl=False)
    return 0 if all(outcome.result == "passed" for outcome in outcomes) else HANG
