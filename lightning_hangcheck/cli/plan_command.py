"""`hangcheck plan`: will this model fit, where will it go, and how fast will it be?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.doctor.memory_checks import find_machine
from lightning_hangcheck.hooks.plan import plan_memory
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.planning.config import DTYPES
from lightning_hangcheck.planning.plan import GB, SPEEDS, read_extra, read_phase
from lightning_hangcheck.planning.planner import ANSWER, MEANS
from lightning_hangcheck.report.paragraphs import (
    INDENT,
    LABEL_WIDTH,
    MARGIN,
    aligned,
    listed,
    plain,
)
from lightning_hangcheck.text.shown import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.planning.plan import Plan

NOT_ON_DISK = (
    "nothing: it would need offload_folder, with which layers are read from disk for each token, "
    "and DDP, FSDP and model.to() fail; plan one of the ways out, and paste what that says"
)
CONTEXT = "Prompt and answer together [4096, or what the model takes]."
EXTRA = "What else is in memory: GB, or a count and a type (174M*complex64); @cpu: not on a GPU."
PHASE = "A phase with another context, batch or extra: 'rollout:context=16384,batch=8'."


@cli.command(
    "plan",
    "hangcheck plan ./my-model",
    "hangcheck plan ./my-model --gpus 2 --gpu-memory 24 --cpu-memory 64 --context 8192",
    "hangcheck plan ./my-model/config.json --gpus 1 --gpu-memory 80 --extra operators=6",
    "hangcheck plan ./my-model --extra operators=174M*complex64 --extra cache=2.5@cpu",
    "hangcheck plan ./my-model --phase 'rollout:context=16384,batch=8' "
    "--phase 'train:optimizer=12'",
)
@click.argument("model", metavar="MODEL_OR_CONFIG")
@cli.option("--gpus", "N", "GPUs [those of this machine].", type=cli.Whole(0, 1024))
@cli.option("--gpu-memory", "GB", "Memory of each GPU.", callback=cli.positive)
@cli.option(
    "--cpu-memory", "GB", "Main memory for weights [90 % of what is free].", callback=cli.positive
)
@click.option("--dtype", type=click.Choice(DTYPES), help="Format of the weights [as stored].")
@cli.option("--context", "TOKENS", CONTEXT, type=cli.Whole(1, 100_000_000))
@cli.option("--batch", "N", "Sequences at a time.", type=cli.Whole(1, 1_000_000), default=1)
@cli.many("--extra extras", "NAME=SIZE", EXTRA)
@cli.many("--phase phases", "NAME:SETTINGS", PHASE)
@cli.option("--json as_json", None, "Print the plan as JSON, for programs.")
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
    use |= {
        "extras": tuple(map(read_extra, extras)),
        "phases": tuple(map(read_phase, phases)),
    }
    made = plan_memory(model, find_machine(gpus, gpu_memory, cpu_memory), **use)
    click.echo(encode_pretty(made) if as_json else render(made), nl=False)
    return 0


def render(plan: Plan) -> str:
    """Write a plan for people; never raises, whatever a config.json holds."""
    use, layers = plan.use, several(plan.layers, "layer")
    kinds = {memory: plan.machine.gpus.count(memory) for memory in plan.machine.gpus}
    gpus = " and ".join(f"{several(n, 'GPU')} of {_gb(memory)}" for memory, n in kinds.items())
    many = f"{plan.parameters / 1e9:.2f} billion"
    weights = many if plan.parameters >= 1e9 else f"{plan.parameters / 1e6:.3g} million"
    size = f"{weights} weights, {_gb(plan.weights)} in {use.dtype}"
    needs = [
        ["weights", _gb(plan.weights), f"{layers}; counted by {plain(plan.source)}"],
        ["KV cache", _gb(plan.cache), f"context {use.context} tokens, batch {use.batch}"],
        ["activations", _gb(plan.activations), "estimated, within a factor of 1.5"],
    ]
    for extra in use.extras:
        where = "in main memory" if extra.on_cpu else "with the model"
        needs.append([plain(extra.name), _gb(extra.size), where])
    phases = [
        [
            plain(phase.name),
            f"context {phase.use.context}, batch {phase.use.batch}",
            f"cache {_gb(phase.cache)}",
            f"activations {_gb(phase.activations)}",
            f"extra {_gb(sum(phase.extras.values()))}" if phase.extras else "",
            f"{phase.speed}: {_left(phase.least_left)}",
        ]
        for phase in plan.phases
    ]
    places = [
        [
            f"GPU {share.device}" if share.device.isdigit() else share.device,
            several(share.layers, "layer"),
            f"weights {_gb(share.weights)}",
            f"cache {_gb(share.cache)}",
            "" if share.device == "disk" else f"{_left(share.headroom)} of {_gb(share.memory)}",
        ]
        for share in plan.shares
    ]
    away = "nothing is offloaded"
    if plan.offloaded:
        moved = several(plan.offloaded_layers, "layer")
        away = f"{moved}, {_gb(plan.offloaded)} of weights; placed by accelerate's rules"
    token = _about(plan.seconds_per_token)
    time = f"about {token} for one pass"  # a model that does not generate token by token
    if plan.cache:
        time = (
            f"about {token} a token, {_about(plan.seconds_per_token * ANSWER)} for {ANSWER} tokens"
        )
    # Python arguments of from_pretrained
    bits = {"int8": "load_in_8bit=True", "int4": "load_in_4bit=True"}.get(use.dtype)
    kind = f"quantization_config=BitsAndBytesConfig({bits})," if bits else f'dtype="{use.dtype}",'
    limits = ", ".join(
        f'{name}: "{memory}"' if name.isdigit() else f'"{name}": "{memory}"'
        for name, memory in plan.max_memory.items()
    )
    paste = _rows("paste", [[kind], ['device_map="auto",'], [f"max_memory={{{limits}}},"]])
    if any(share.device == "disk" for share in plan.shares):
        paste = listed("paste", [NOT_ON_DISK], 24)
    better = SPEEDS[: SPEEDS.index(plan.speed)]
    helping = [way for way in plan.ways_out if way.fits or way.speed in better] or plan.ways_out
    ways = [
        f"{index}. {way.change} ({way.speed}): {way.outcome}"
        for index, way in enumerate(helping, 1)
    ]
    on = f"on {gpus}" if gpus else "without a GPU"
    paragraphs = [
        [f"{plan.speed.upper()}  {plain(plan.model)} ({size}) {on}", f"{INDENT}{plan.reason}"],
        _rows("needs", needs),
        _rows("phases", phases),
        _rows("places", places),
        listed("offload", [away], 24),
        listed("time", [time], 24),
        listed("class", [f"{plan.speed}: {MEANS[plan.speed]}"], 24),
        paste,
        listed("ways out", ways, 24),
        listed("unused", plan.unused, 24),
        listed("notes", plan.notes, 24),
    ]
    return "\n\n".join("\n".join(lines) for lines in paragraphs if lines) + "\n"


def _about(seconds: float) -> str:
    """Show two digits: an estimate is no more precise."""
    return seconds_in_words(float(f"{seconds:.2g}"))


def _rows(label: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Align cells beside a label; long last cells are not cut, because users copy them."""
    lines = aligned(rows, indent=MARGIN, width=None)
    first = f"{INDENT}{label:<{LABEL_WIDTH}}"
    return [first + line[len(MARGIN) :] if not at else line for at, line in enumerate(lines)]


def _left(size: int) -> str:
    return f"{_gb(size)} left" if size >= 0 else f"{_gb(-size)} short"


def _gb(size: int) -> str:
    """Show GB with as many digits as matter: 0.05, 1.2, 145."""
    return f"{size / GB:.2g} GB" if size < GB else f"{size / GB:.1f} GB"
