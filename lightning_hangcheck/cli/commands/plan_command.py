"""`hangcheck plan`: will this model fit, where will it go, and how fast will it be?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import click

from lightning_hangcheck.hooks.plan import plan_memory
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.planning.config import DTYPES
from lightning_hangcheck.planning.plan import read_extra, read_phase
from lightning_hangcheck.report import plan_text

if TYPE_CHECKING:
    from lightning_hangcheck.planning.config import Dtype

EPILOG = """\b
Examples:
  hangcheck plan ./my-model
  hangcheck plan ./my-model --gpus 2 --gpu-memory 24 --cpu-memory 64 --context 8192
  hangcheck plan ./my-model/config.json --gpus 1 --gpu-memory 80 --extra operators=6
  hangcheck plan ./my-model --extra operators=174M*complex64 --extra cache=2.5@cpu
  hangcheck plan ./my-model --phase 'rollout:context=16384,batch=8' --phase 'train:optimizer=12'
"""


def _positive(_: click.Context, option: click.Parameter, number: float | None) -> float | None:
    if number is not None and not 0 < number < math.inf:
        raise click.BadParameter(f"{number:g} is no positive number", param=option)
    return number


@click.command("plan", epilog=EPILOG)
@click.argument("model", metavar="MODEL_OR_CONFIG")
@click.option(
    "--gpus", type=click.IntRange(0, 1024), metavar="N", help="GPUs [those of this machine]."
)
@click.option(
    "--gpu-memory", type=float, callback=_positive, metavar="GB", help="Memory of each GPU."
)
@click.option(
    "--cpu-memory",
    type=float,
    callback=_positive,
    metavar="GB",
    help="Main memory for weights [90 % of what is free].",
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Format of the weights [as stored].")
@click.option(
    "--context",
    type=click.IntRange(1, 100_000_000),
    metavar="TOKENS",
    help="Prompt and answer together [4096, or what the model takes].",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    default=1,
    metavar="N",
    help="Sequences at a time.",
)
@click.option(
    "--extra",
    "extras",
    multiple=True,
    metavar="NAME=SIZE",
    help="What is kept beside the model: GB, or numbers and their type, 174M*complex64; @cpu.",
)
@click.option(
    "--phase",
    "phases",
    multiple=True,
    metavar="NAME:SETTINGS",
    help="A phase with another context, batch or extra: 'rollout:context=16384,batch=8'.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON, for programs.")
def plan(
    model: str,
    gpus: int | None,
    gpu_memory: float | None,
    cpu_memory: float | None,
    dtype: str | None,
    context: int | None,
    batch: int,
    extras: tuple[str, ...],
    phases: tuple[str, ...],
    *,
    as_json: bool,
) -> int:
    """Plan a model's memory for generation, before anything is loaded.

    MODEL_OR_CONFIG is a model's folder, its config.json, or its name on the hub. The plan says what
    weights, KV cache and activations need, where they go, what to give to from_pretrained, how fast
    it will be, and what would help. Exit code 2 if the configuration cannot be used.
    """
    # imported here, so that other commands need not load what checks of a machine need
    from lightning_hangcheck.doctor.fitting import find_machine

    made = plan_memory(
        model,
        find_machine(gpus, gpu_memory, cpu_memory),
        dtype=cast("Dtype | None", dtype),
        context=context,
        batch=batch,
        extras=tuple(map(read_extra, extras)),
        phases=tuple(map(read_phase, phases)),
    )
    if as_json:
        click.echo(encode_pretty(made), nl=False)
    else:
        click.echo(plan_text.render(made), nl=False)
    return 0
