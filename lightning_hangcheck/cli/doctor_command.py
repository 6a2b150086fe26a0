"""`hangcheck doctor`: find before a run what would make it hang, or hide why it hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import show
from lightning_hangcheck.doctor.check import DEPTH, GROUPS, Subject
from lightning_hangcheck.doctor.examination import STYLES, checks_of, examine, render
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.planning.plan import read_extra
from lightning_hangcheck.rundir import RUNS_FOLDER

SEVERAL = "; may be given several times."
RUN_DIR = "Where the run will be recorded. (HANGCHECK_RUN_DIR)"
PLACE = "Where the run saves: a folder, or s3://, gs://, hf:// and the like."
PATTERN = f"A file that must be there, for example 'step_*/model.pt'{SEVERAL}"
LOADED = f"A checkpoint that the run loads, file or folder{SEVERAL}"
BACKBONE = "The model that loads it: its folder, or its name in the hub's cache."
EXTRA = "What is kept in memory with that model, as for `hangcheck plan`."
DEEP = f"How deep that place is looked at and shown [{DEPTH}]."
OR_30: dict[str, Any] = {"callback": cli.positive, "is_flag": False, "flag_value": "30"}
FRESH = "What --needs names must be newer than that [30 where no number is given]."


@cli.command(
    "doctor",
    "hangcheck doctor",
    "hangcheck doctor --only seeing --only environment",
    "hangcheck doctor -- torchrun --nproc_per_node=2 train.py",
    "hangcheck doctor --only ranks -- torchrun --nproc_per_node=2",
    "hangcheck doctor --checkpoints s3://bucket/run --expect 'step_*/model.pt'",
    "hangcheck doctor --needs tokens.bin --needs labels.csv --fresh 60",
    "hangcheck doctor --loads step_500/model.pt --backbone Qwen/Qwen2.5-0.5B",
    "hangcheck doctor --json -- srun --ntasks=8 python train.py",
    context_settings=cli.BEFORE_DASHES,
)
@cli.many("--only groups", None, f"Checks of this group{SEVERAL}", type=click.Choice(GROUPS))
@cli.option("--run-dir", "DIR", RUN_DIR, type=Path, envvar="HANGCHECK_RUN_DIR", default=RUNS_FOLDER)
@cli.option("--checkpoints", "PLACE", PLACE)
@cli.option("--depth", "FOLDERS", DEEP, type=cli.Whole(1, 20), default=DEPTH)
@cli.many("--expect", "PATTERN", PATTERN)
@cli.many("--needs", "FILE", f"A file or folder that the run reads{SEVERAL}")
@cli.many("--loads", "CHECKPOINT", LOADED)
@cli.option("--backbone", "MODEL", BACKBONE)
@cli.many("--extra extras", "NAME=SIZE", EXTRA)
@cli.option("--fresh fresh_minutes", "MINUTES", FRESH, **OR_30)
@cli.option("--json as_json", None, "Print the answers as JSON, for programs.")
@cli.command_behind_dashes("[-- CMD...]")
def doctor(
    groups: tuple[str, ...],
    extras: tuple[str, ...],
    *,
    as_json: bool,
    **run: Any,  # noqa: ANN401 - fields of `Subject`, by their names
) -> int:
    """Check before a run what would make it hang, or would hide why it hangs.

    CMD is the command that would follow `hangcheck run --`. Its program is read, not run; its
    launcher (torchrun, srun, accelerate, mpirun) starts ranks of ours, to see whether they reach
    each other. Exit code 0 if all is well, 1 after a warning, 2 if something failed.
    """
    if run["expect"] and run["checkpoints"] is None:
        raise BadUsage("--expect needs a place to look", "say it too: --checkpoints PLACE")
    if extras and run["backbone"] is None:
        raise BadUsage("--extra needs a model", "say which: --backbone MODEL")
    run |= {"environment": dict(os.environ), "extras": tuple(map(read_extra, extras))}
    found = examine(Subject(**run), checks_of(groups))
    if as_json:
        click.echo(encode_pretty(found), nl=False)
    else:
        show(render(found), STYLES)
    return found.exit_code
