"""`hangcheck plan`: will this model fit, where will it go, and how fast will it be?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, cast

import click

from lightning_hangcheck.doctor.machine import find_machine
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.plan.memory_plan import plan_memory
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.planning.plan import GB, Extra
from lightning_hangcheck.planning.weights import DTYPES
from lightning_hangcheck.report import plan_text

if TYPE_CHECKING:
    from lightning_hangcheck.planning.weights import Dtype

EPILOG = """\b
Examples:
  hangcheck plan ./my-model
  hangcheck plan ./my-model --gpus 2 --gpu-memory 24 --cpu-memory 64 --context 8192
  hangcheck plan ./my-model/config.json --gpus 1 --gpu-memory 80 --extra operators=6
  hangcheck plan ./my-model --extra operators=174M*complex64 --extra cache=2.5
"""
COUNTS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
BYTES_OF_A_NUMBER = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""By torch's names of types."""


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
    help="What is kept beside the model: GB, or numbers and their type, 174M*complex64.",
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
    *,
    as_json: bool,
) -> int:
    """Plan a model's memory for generation, before anything is loaded.

    MODEL_OR_CONFIG is a model's folder, its config.json, or its name on the hub. The plan says what
    weights, KV cache and activations need, where they go, what to give to from_pretrained, how fast
    it will be, and what would help. Exit code 2 if the configuration cannot be used.
    """
    beside = tuple(map(_extra, extras))
    made = plan_memory(
        model,
        find_machine(gpus, gpu_memory, cpu_memory),
        dtype=cast("Dtype | None", dtype),
        context=context,
        batch=batch,
        extras=beside,
    )
    if as_json:
        click.echo(encode_pretty(made), nl=False)
    else:
        click.echo(plan_text.render(made), nl=False)
    return 0


def _extra(text: str) -> Extra:
    name, equals, size = text.partition("=")
    try:
        wanted = _bytes(size)
    except ValueError:
        wanted = math.nan
    if not (name.strip() and equals and 0 <= wanted < math.inf):
        raise BadUsage(
            f"--extra {text} is no NAME=GB and no NAME=COUNT*TYPE",
            "write for example --extra operators=6, or --extra operators=174M*complex64",
        )
    return Extra(name.strip(), int(wanted))


def _bytes(size: str) -> float:
    """Read GB, or a count of numbers and what each of them takes.

    Raises:
        ValueError: It is neither.
    """
    count, times, kind = size.partition("*")
    if not times:
        return float(size) * GB
    if kind.strip() not in BYTES_OF_A_NUMBER:
        raise ValueError(f"{kind} is no type of numbers")
    number, letter = count.strip(), count.strip()[-1:]
    factor = COUNTS.get(letter, 1.0)
    numbers = float(number[:-1] if letter in COUNTS else number) * factor
    return numbers * BYTES_OF_A_NUMBER[kind.strip()]
