"""A memory plan as text: what it needs, where it goes, what to paste, and the ways out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.placing import ANSWER, MEANS
from lightning_hangcheck.planning.plan import GB
from lightning_hangcheck.report.paragraphs import INDENT, LABEL_WIDTH, listed, plain
from lightning_hangcheck.text.shown import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.planning.plan import PhasePlan, Plan, Share

MOST_LINES = 24
NOT_ON_DISK = (
    "nothing: it would need offload_folder, with which layers are read from disk for each token, "
    "and DDP, FSDP and model.to() fail; plan one of the ways out, and paste what that says"
)
MARGIN = INDENT + " " * LABEL_WIDTH


def render(plan: Plan) -> str:
    """Write a plan for people; never raises on what a config.json may hold.

    Args:
        plan: Of one model on one machine.
    """
    paragraphs = [
        _headline(plan),
        _rows("needs", _needs(plan)),
        _rows("phases", [_phase(phase) for phase in plan.phases]) if plan.phases else [],
        _rows("places", [_place(share) for share in plan.shares]),
        listed("offload", [_away(plan)], MOST_LINES),
        listed("time", [_time(plan)], MOST_LINES),
        listed("class", [f"{plan.speed}: {MEANS[plan.speed]}"], MOST_LINES),
        (
            listed("paste", [NOT_ON_DISK], MOST_LINES)
            if any(share.device == "disk" for share in plan.shares)
            else _rows("paste", [[line] for line in _paste(plan)])
        ),
        listed("ways out", _ways_out(plan), MOST_LINES) if plan.ways_out else [],
        listed("unused", plan.unused, MOST_LINES),
        listed("notes", plan.notes, MOST_LINES),
    ]
    blocks = ["\n".join(lines) for lines in paragraphs if lines]
    return "\n\n".join(blocks) + "\n"


def _headline(plan: Plan) -> list[str]:
    where = _machine(plan.machine.gpus)
    size = f"{_short(plan.parameters)} weights, {_gb(plan.weights)} in {plan.use.dtype}"
    return [
        f"{plan.speed.upper()}  {plain(plan.model)} ({size}) {where}",
        f"{INDENT}{plan.reason}",
    ]


def _machine(gpus: tuple[int, ...]) -> str:
    kinds = {memory: gpus.count(memory) for memory in gpus}
    words = (f"{several(n, 'GPU')} of {_gb(memory)}" for memory, n in kinds.items())
    return "on " + " and ".join(words) if gpus else "without a GPU"


def _short(number: int) -> str:
    """For example ``7.62 billion``."""
    return f"{number / 1e9:.2f} billion" if number >= 1e9 else f"{number / 1e6:.3g} million"


def _needs(plan: Plan) -> list[list[str]]:
    use = plan.use
    sure = f"{several(plan.layers, 'layer')}; {plan.sureness} by {plain(plan.source)}"
    return [
        ["weights", _gb(plan.weights), sure],
        ["KV cache", _gb(plan.cache), f"context {use.context} tokens, batch {use.batch}"],
        ["activations", _gb(plan.activations), "estimated, within a factor of 1.5"],
        *(
            [plain(one.name), _gb(one.size), "in main memory" if one.on_cpu else "beside the model"]
            for one in use.extras
        ),
    ]


def _phase(phase: PhasePlan) -> list[str]:
    left = phase.least_left
    return [
        plain(phase.name),
        f"context {phase.context}, batch {phase.batch}",
        f"cache {_gb(phase.cache)}",
        f"activations {_gb(phase.activations)}",
        f"beside {_gb(phase.beside)}",
        f"{phase.speed}: {_gb(left)} left" if left >= 0 else f"{phase.speed}: {_gb(-left)} short",
    ]


def _place(share: Share) -> list[str]:
    named = f"GPU {share.device}" if share.device.isdigit() else share.device
    held = [
        several(share.layers, "layer"),
        f"weights {_gb(share.weights)}",
        f"cache {_gb(share.cache)}",
    ]
    if share.device == "disk":
        return [named, *held, ""]
    left = f"{_gb(share.headroom)} left" if share.headroom >= 0 else f"{_gb(-share.headroom)} short"
    return [named, *held, f"{left} of {_gb(share.memory)}"]


def _paste(plan: Plan) -> list[str]:
    """Lines of Python, ready for from_pretrained."""
    keys = (
        (name if name.isdigit() else f'"{name}"', size) for name, size in plan.max_memory.items()
    )
    limits = ", ".join(f'{key}: "{size}"' for key, size in keys)
    dtype = plan.use.dtype
    bits = {"int8": "load_in_8bit=True", "int4": "load_in_4bit=True"}.get(dtype)
    lines = [f"quantization_config=BitsAndBytesConfig({bits})," if bits else f'dtype="{dtype}",']
    return [*lines, 'device_map="auto",', f"max_memory={{{limits}}},"]


def _away(plan: Plan) -> str:
    if not plan.offloaded:
        return "nothing is offloaded"
    layers = several(plan.offloaded_layers, "layer")
    return f"{layers}, {_gb(plan.offloaded)} of weights; placed by {plan.placed_by}"


def _time(plan: Plan) -> str:
    """What one generation takes; a model that does not make text token by token takes one pass."""
    token = _about(plan.seconds_per_token)
    if not plan.cache:
        return f"about {token} for one pass"
    return f"about {token} a token, {_about(plan.seconds_per_token * ANSWER)} for {ANSWER} tokens"


def _about(seconds: float) -> str:
    """Two digits: more would claim what an estimate does not know."""
    return seconds_in_words(float(f"{seconds:.2g}"))


def _ways_out(plan: Plan) -> list[str]:
    return [
        f"{index}. {way.change} ({way.speed}): {way.outcome}"
        for index, way in enumerate(plan.ways_out, 1)
    ]


def _rows(label: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned cells beside a label; long last cells are not cut, they are there to be copied."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        MARGIN + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]
    first = f"{INDENT}{label:<{LABEL_WIDTH}}" + lines[0][len(MARGIN) :]
    return [line.rstrip() for line in (first, *lines[1:])]


def _gb(size: int) -> str:
    """GB with as many digits as matter: 0.05, 1.2, 145."""
    return f"{size / GB:.2g} GB" if size < GB else f"{size / GB:.1f} GB"
