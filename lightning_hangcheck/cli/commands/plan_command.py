"""`hangcheck plan`: will this model fit, where will it go, and how fast will it be?"""

from __future__ import annotations

from typing import Any

import click

from lightning_hangcheck.cli.options import Whole, many, option, positive
from lightning_hangcheck.doctor.memory_checks import find_machine
from lightning_hangcheck.hooks.plan import plan_memory
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.planning.config import DTYPES
from lightning_hangcheck.planning.plan import read_extra, read_phase
from lightning_hangcheck.report import plan_text

EPILOG = """\b
Examples:
  hangcheck plan ./my-model
  hangcheck plan ./my-model --gpus 2 --gpu-memory 24 --cpu-memory 64 --context 8192
  hangcheck plan ./my-model/config.json --gpus 1 --gpu-memory 80 --extra operators=6
  hangcheck plan ./my-model --extra operators=174M*complex64 --extra cache=2.5@cpu
  hangcheck plan ./my-model --phase 'rollout:context=16384,batch=8' --phase 'train:optimizer=12'
"""
CONTEXT = "Prompt and answer together [4096, or what the model takes]."
EXTRA = "What else is in memory: GB, or a count and a type (174M*complex64); @cpu: not on a GPU."
PHASE = "A phase with another context, batch or extra: 'rollout:context=16384,batch=8'."


@click.command("plan", epilog=EPILOG)
@click.argument("model", metavar="MODEL_OR_CONFIG")
@option("--gpus", "N", "GPUs [those of this machine].", type=Whole(0, 1024))
@option("--gpu-memory", "GB", "Memory of each GPU.", callback=positive)
@option("--cpu-memory", "GB", "Main memory for weights [90 % of what is free].", callback=positive)
@click.option("--dtype", type=click.Choice(DTYPES), help="Format of the weights [as stored].")
@option("--context", "TOKENS", CONTEXT, type=Whole(1, 100_000_000))
@option("--batch", "N", "Sequences at a time.", type=Whole(1, 1_000_000), default=1)
@many("--extra extras", "NAME=SIZE", EXTRA)
@many("--phase phases", "NAME:SETTINGS", PHASE)
@option("--json as_json", None, "Print the plan as JSON, for programs.")
def plan(
    model: str,
    gpus: int | None,
    gpu_memory: float | None,
    cpu_memory: float | None,
    extras: tuple[str, ...],
    phases: tuple[str, ...],
    *,
    as_json: bool,
    **use: Any,  # noqa: ANN401 - as `plan_memory` takes them, by their names
) -> int:
    """Plan a model's memory for generation, before anything is loaded.

    MODEL_OR_CONFIG is a model's folder, its config.json, or its name on the hub. The plan says what
    weights, KV cache and activations need, where they go, what to give to from_pretrained, how fast
    it will be, and what would help. Exit code 2 if the configuration cannot be used.
    """
    made = plan_memory(
        model,
        find_machine(gpus, gpu_memory, cpu_memory),
        extras=tuple(map(read_extra, extras)),
        phases=tuple(map(read_phase, phases)),
        **use,
    )
    click.echo(encode_pretty(made) if as_json else plan_text.render(made), nl=False)
    return 0
