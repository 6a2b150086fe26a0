"""`hangcheck rehearse`: run a command on a few CPU ranks, and provoke divergence in turn."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from lightning_hangcheck.cli.exit_codes import HANG
from lightning_hangcheck.cli.options import (
    OWN_WORDS,
    Whole,
    command_behind_dashes,
    end_on_sigterm,
    many,
    option,
    positive,
    run_dir_option,
)
from lightning_hangcheck.cli.showing import as_typed, say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.launch.run import refuse_unstartable
from lightning_hangcheck.rehearse import NAMES, play_all, render
from lightning_hangcheck.rundir import name_run_folder

EPILOG = """\b
Examples:
  hangcheck rehearse -- torchrun --nproc_per_node=8 train.py
  hangcheck rehearse -- python train.py --config small.yaml
  hangcheck rehearse --scene save-fails --scene early-stop -- accelerate launch train.py
\b
Scenes: fewer-samples, no-samples, smaller-last-batch, unusable-batch,
  non-finite-loss, save-fails, save-slow, early-stop, sigterm, no-workers,
  one-worker; as-it-is always comes first.
"""
RANKS: dict[str, Any] = {"type": Whole(2, 16), "default": 2, "show_default": True}
BATCHES: dict[str, Any] = {"type": Whole(2, 1000), "default": 4, "show_default": True}
LIMIT: dict[str, Any] = {"callback": positive, "default": "600", "show_default": True}


@click.command("rehearse", epilog=EPILOG, context_settings=OWN_WORDS)
@option("--ranks", "N", "CPU ranks to run it on.", **RANKS)
@option("--batches", "N", "Most batches of a pass over a DataLoader.", **BATCHES)
@many("--scene scenes", "NAME", "Only this scene; may be repeated.")
@option("--limit limit_s", "SECONDS", "Time that each scene may take at most.", **LIMIT)
@option("--json as_json", None, "Print one JSON object.")
@run_dir_option("DIR", "Run folders DIR-...", "new ones")
@command_behind_dashes()
def rehearse(
    command: tuple[str, ...],
    *,
    ranks: int,
    batches: int,
    scenes: tuple[str, ...],
    limit_s: float,
    as_json: bool,
    run_dir: str | None,
) -> int:
    """Run CMD on 2 CPU ranks with few batches, and provoke in turn what makes them diverge.

    What the program does not have is skipped. No file is changed; GPUs are hidden.
    Exit code 0 if no scene hung, 3 if one did, 2 if CMD cannot be rehearsed.
    """
    if not command:
        raise BadUsage(
            "rehearse needs a command to run",
            "write it behind two dashes: hangcheck rehearse -- torchrun train.py",
        )
    unknown = [name for name in scenes if name not in NAMES]
    if unknown:
        raise BadUsage(f"there is no scene {unknown[0]!r}", f"name one of: {', '.join(NAMES)}")
    refuse_unstartable(command, "rehearse")
    end_on_sigterm()
    rehearsed = play_all(
        command,
        ranks=ranks,
        batches=batches,
        wanted=scenes,
        root=name_run_folder(run_dir),
        limit_s=limit_s,
        shown=as_typed,
        say=say,
    )
    if as_json:
        facts = {"schema_version": 1, **msgspec.to_builtins(rehearsed)}
        click.echo(msgspec.json.format(msgspec.json.encode(facts)))
    else:
        click.echo(render(rehearsed), nl=False)
    return HANG if rehearsed.hung else 0
