"""A memory plan as text: what it needs, where it goes, what to paste, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.placing import ANSWER, MEANS
from lightning_hangcheck.planning.plan import GB, SPEEDS
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

    from lightning_hangcheck.planning.plan import Plan, Share

MOST_LINES = 24
NOT_ON_DISK = (
    "nothing: it would need offload_folder, with which layers are read from disk for each token, "
    "and DDP, FSDP and model.to() fail; plan one of the ways out, and paste what that says"
)


def render(plan: Plan) -> str:
    """Write a plan for people; never raises on what a config.json may hold."""
    kinds = {memory: plan.machine.gpus.count(memory) for memory in plan.machine.gpus}
    gpus = " and ".join(f"{several(n, 'GPU')} of {_gb(memory)}" for memory, n in kinds.items())
    many = f"{plan.parameters / 1e9:.2f} billion"
    weights = many if plan.parameters >= 1e9 else f"{plan.parameters / 1e6:.3g} million"
    size = f"{weights} weights, {_gb(plan.weights)} in {plan.use.dtype}"
    layers = several(plan.offloaded_layers, "layer")
    away = f"{layers}, {_gb(plan.offloaded)} of weights; placed by {plan.placed_by}"
    token = _about(plan.seconds_per_token)
    time = f"about {token} for one pass"  # of a model that does not make text token by token
    if plan.cache:
        answer = _about(plan.seconds_per_token * ANSWER)
        time = f"about {token} a token, {answer} for {ANSWER} tokens"
    on_disk = any(share.device == "disk" for share in plan.shares)
    better = SPEEDS[: SPEEDS.index(plan.speed)]
    helping = [way for way in plan.ways_out if way.fits or way.speed in better]
    ways = [
        f"{index}. {way.change} ({way.speed}): {way.outcome}"
        for index, way in enumerate(helping or plan.ways_out, 1)
    ]
    phases = [
        [
            plain(one.name),
            f"context {one.use.context}, batch {one.use.batch}",
            f"cache {_gb(one.cache)}",
            f"activations {_gb(one.activations)}",
            f"extra {_gb(sum(one.extras.values()))}" if one.extras else "",
            f"{one.speed}: {_left(one.least_left)}",
        ]
        for one in plan.phases
    ]
    where = f"on {gpus}" if gpus else "without a GPU"
    paragraphs = [
        [f"{plan.speed.upper()}  {plain(plan.model)} ({size}) {where}", f"{INDENT}{plan.reason}"],
        _rows("needs", _needs(plan)),
        _rows("phases", phases),
        _rows("places", [_place(share) for share in plan.shares]),
        listed("offload", [away if plan.offloaded else "nothing is offloaded"], MOST_LINES),
        listed("time", [time], MOST_LINES),
        listed("class", [f"{plan.speed}: {MEANS[plan.speed]}"], MOST_LINES),
        listed("paste", [NOT_ON_DISK], MOST_LINES) if on_disk else _rows("paste", _paste(plan)),
        listed("ways out", ways, MOST_LINES),
        listed("unused", plan.unused, MOST_LINES),
        listed("notes", plan.notes, MOST_LINES),
    ]
    blocks = ["\n".join(lines) for lines in paragraphs if lines]
    return "\n\n".join(blocks) + "\n"


def _needs(plan: Plan) -> list[list[str]]:
    use = plan.use
    sure = f"{several(plan.layers, 'layer')}; {plan.sureness} by {plain(plan.source)}"
    extras = [
        [plain(one.name), _gb(one.size), "in main memory" if one.on_cpu else "with the model"]
        for one in use.extras
    ]
    return [
        ["weights", _gb(plan.weights), sure],
        ["KV cache", _gb(plan.cache), f"context {use.context} tokens, batch {use.batch}"],
        ["activations", _gb(plan.activations), "estimated, within a factor of 1.5"],
        *extras,
    ]


def _place(share: Share) -> list[str]:
    on_disk = share.device == "disk"
    return [
        f"GPU {share.device}" if share.device.isdigit() else share.device,
        several(share.layers, "layer"),
        f"weights {_gb(share.weights)}",
        f"cache {_gb(share.cache)}",
        "" if on_disk else f"{_left(share.headroom)} of {_gb(share.memory)}",
    ]


def _paste(plan: Plan) -> list[list[str]]:
    """Lines of Python, ready for from_pretrained."""
    keys = (
        (name if name.isdigit() else f'"{name}"', size) for name, size in plan.max_memory.items()
    )
    limits = ", ".join(f'{key}: "{size}"' for key, size in keys)
    dtype = plan.use.dtype
    bits = {"int8": "load_in_8bit=True", "int4": "load_in_4bit=True"}.get(dtype)
    first = f"quantization_config=BitsAndBytesConfig({bits})," if bits else f'dtype="{dtype}",'
    return [[first], ['device_map="auto",'], [f"max_memory={{{limits}}},"]]


def _about(seconds: float) -> str:
    """Two digits: more would claim what an estimate does not know."""
    return seconds_in_words(float(f"{seconds:.2g}"))


def _rows(label: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned cells beside a label; long last cells are not cut, they are there to be copied."""
    lines = aligned(rows, indent=MARGIN, width=None)
    first = f"{INDENT}{label:<{LABEL_WIDTH}}"
    return [first + line[len(MARGIN) :] if not at else line for at, line in enumerate(lines)]


def _left(size: int) -> str:
    return f"{_gb(size)} left" if size >= 0 else f"{_gb(-size)} short"


def _gb(size: int) -> str:
    """GB with as many digits as matter: 0.05, 1.2, 145."""
    return f"{size / GB:.2g} GB" if size < GB else f"{size / GB:.1f} GB"
