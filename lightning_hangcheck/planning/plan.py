"""Inputs of a plan, how a user writes them, and the plan itself."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.config import Dtype, Fields
from lightning_hangcheck.text.shown import several

GB = 10**9  # Bytes of a GB, as accelerate reads ``"72GB"``; an 80 GB GPU has a little more.
SpeedClass = Literal["fast", "good", "acceptable", "slow", "too slow"]
SPEEDS: tuple[SpeedClass, ...] = get_args(SpeedClass)  # Fastest first.
# bitsandbytes packs two 4-bit weights into a byte, with a float32 scale per 64 weights
# (bitsandbytes/functional.py, quantize_4bit: blocksize 64)
QUANTIZED: dict[Dtype, float] = {"int8": 1, "int4": 0.5 + 4 / 64}  # Bytes per weight.


class Piece(Struct, frozen=True):
    """A part of the model that stays on one device.

    Attributes:
        linear: Parameters that 8-bit and 4-bit loading shrinks. bitsandbytes replaces only
            ``nn.Linear`` and ``Conv1D`` (transformers/integrations/bitsandbytes.py): not
            embeddings, norms, the head, or experts stored in one tensor.
    """

    parameters: int
    linear: int = 0


class Model(Struct, frozen=True):
    """A model to plan.

    Attributes:
        pieces: In the order in which the model runs: embeddings (with the head if it shares their
            weights), each layer, norm and head.
        source: On what its weights were counted, in words.
    """

    name: str
    fields: Fields
    pieces: tuple[Piece, ...]
    source: str


class Extra(Struct, frozen=True):
    """A module kept next to the model: on the first GPU, or in main memory."""

    name: str
    size: int
    on_cpu: bool = False


class Machine(Struct, frozen=True, kw_only=True):
    """The machine that will run the model.

    Attributes:
        gpus: Bytes of each GPU.
        cpu: Bytes of main memory that weights may use.
    """

    gpus: tuple[int, ...]
    cpu: int
    source: str = "given"


class Use(Struct, frozen=True, kw_only=True):
    """How the model will be used.

    Attributes:
        context: Tokens of prompt and answer together.
    """

    dtype: Dtype
    context: int
    batch: int = 1
    extras: tuple[Extra, ...] = ()


class Share(Struct, frozen=True, kw_only=True):
    """What one device holds, in bytes except for ``layers``.

    Attributes:
        device: ``0``, ``1``, ... for GPUs, ``cpu``, ``disk``.
        limit: Bytes of weights that ``max_memory`` allows.
        headroom: Bytes left; below 0 if the model does not fit.
    """

    device: str
    memory: int = 0
    limit: int = 0
    layers: int = 0
    weights: int = 0
    cache: int = 0
    activations: int = 0
    extras: int = 0
    headroom: int = 0


class WayOut(Struct, frozen=True, kw_only=True):
    """A change that was also planned: what to do, and the result in words."""

    change: str
    outcome: str
    fits: bool
    speed: SpeedClass


class Plan(Struct, frozen=True, kw_only=True):
    """Whether a model fits, where its parts go, and how fast it will be.

    Attributes:
        name: Name of the phase that the plan is for, if any.
        source: On what the weights were counted, in words.
        weights: Bytes of all weights in the chosen format; the next three fields are bytes too.
        shares: What each device holds; empty devices are left out, except GPUs.
        max_memory: Argument of ``from_pretrained``; the keys of GPUs are their numbers.
        offloaded_layers: Layers that are not on a GPU, although there are GPUs.
        seconds_per_token: Estimated, not measured, time per token, wherever the weights are.
        seconds_per_pass: Minimum time to copy offloaded weights once, for each token; 0 if none.
        unused: Large memory that is paid for but unused, in words.
        notes: Assumptions, and how certain they are.
        phases: Plans for each phase alone; all other fields describe the most demanding phase.
        ways_out: Only if something is offloaded or does not fit.
    """

    model: str
    name: str = ""
    parameters: int
    source: str
    machine: Machine
    use: Use
    layers: int
    weights: int
    cache: int
    activations: int
    extras: dict[str, int]
    shares: tuple[Share, ...]
    max_memory: dict[str, str]
    offloaded_layers: int
    offloaded: int
    seconds_per_token: float
    seconds_per_pass: float
    speed: SpeedClass
    reason: str
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    phases: tuple[Plan, ...] = ()
    ways_out: tuple[WayOut, ...] = ()

    @property
    def least_left(self) -> int:
        """Bytes left on the fullest device; below 0 if the model does not fit."""
        return min((share.headroom for share in self.shares if share.device != "disk"), default=0)

    @property
    def fits(self) -> bool:
        """Whether everything fits on GPUs (without GPUs: in main memory)."""
        on_disk = any(share.device == "disk" for share in self.shares)
        return self.least_left >= 0 and not self.offloaded and not on_disk


COUNTS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
BYTES_OF_A_NUMBER = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64", "complex64"), 8),
    "complex128": 16,
}
"""By torch's type names."""
ON_CPU = "@cpu"


def read_extra(text: str) -> Extra:
    """Parse a value of ``--extra``.

    Raises:
        BadUsage: The name or size is missing.
    """
    name, _, size = text.partition("=")
    count, times, kind = size.removesuffix(ON_CPU).partition("*")
    count, wanted = count.strip(), math.nan
    with suppress(ValueError, KeyError):
        factor = COUNTS.get(count[-1:], 1.0) if times else 1.0
        number = float(count[:-1] if factor > 1 else count) * factor
        wanted = number * (BYTES_OF_A_NUMBER[kind.strip()] if times else GB)
    if not (name.strip() and 0 <= wanted < math.inf):
        raise BadUsage(
            f"--extra {text} is neither NAME=GB nor NAME=COUNT*TYPE",
            "write for example --extra operators=6, or --extra operators=174M*complex64@cpu",
        )
    return Extra(name.strip(), int(wanted), on_cpu=size.endswith(ON_CPU))


LARGEST_NUMBER = 100_000_000
LARGEST_ROOT = 1_000_000  # Tried in 50 ms: training must not wait for advice on a huge buffer.
EXAMPLE = "write for example --phase 'rollout:context=16384,batch=8' --phase 'train:optimizer=12'"


class PlannedPhase(Struct, frozen=True):
    """How a phase of a run differs from its rest: in context and batch, or by other extras."""

    name: str
    numbers: dict[str, int] = {}
    extras: tuple[Extra, ...] = ()

    def use_in(self, rest: Use) -> Use:
        """Return the use of the model in this phase; an extra of the same name replaces one."""
        extras = {extra.name: extra for extra in (*rest.extras, *self.extras)}
        return replace(rest, **self.numbers, extras=tuple(extras.values()))


def read_phase(text: str) -> PlannedPhase:
    """Parse a value of ``--phase``.

    Raises:
        BadUsage: The name is missing, or a setting has no size.
    """
    name, _, rest = text.partition(":")
    settings = [word.strip() for word in rest.split(",") if word.strip()]
    if not (name.strip() and settings):
        raise BadUsage(f"--phase {text} is not NAME:SETTING,SETTING", EXAMPLE)
    numbers: dict[str, int] = {}
    extras = []
    for setting in settings:
        key, _, value = setting.partition("=")
        if key not in ("context", "batch"):
            extras.append(read_extra(setting))
        elif value.isdecimal() and 0 < int(value) <= LARGEST_NUMBER:
            numbers[key] = int(value)
        else:
            why = f"{value!r} is not a number from 1 to {LARGEST_NUMBER}"
            raise BadUsage(f"--phase {text}: {why}", EXAMPLE)
    return PlannedPhase(name.strip(), numbers, tuple(extras))


def gradient_accumulation(buffer: int, world_size: int, micro_batch: int) -> int:
    """Steps over which gradients add up until all ranks have processed one buffer of samples.

    Example:
        >>> gradient_accumulation(buffer=512, world_size=2, micro_batch=4)
        64

    The result is ``buffer / (world_size * micro_batch)``. If ``//`` rounded it, samples would be
    left over in every step, or ranks would make different numbers of steps and wait for each other.

    Args:
        buffer: Samples for one optimizer step, over all ranks.
        world_size: Number of ranks.
        micro_batch: Samples that one rank processes at once.

    Raises:
        BadUsage: The result is no whole number (the message names the nearest buffers and micro
            batches that fit), or an argument is not a whole number above 0.
    """
    numbers = {"buffer": buffer, "world_size": world_size, "micro_batch": micro_batch}
    for name, value in numbers.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            wrong = f"{name}={value!r} is not a whole number above 0"
            raise BadUsage(wrong, "count samples or ranks")
    at_once = world_size * micro_batch
    if buffer % at_once == 0:
        return buffer // at_once

    # the nearest buffers above 0, and the nearest micro batches that fit this buffer
    below = buffer - buffer % at_once
    buffers = sorted(filter(None, (below, below + at_once)), key=lambda size: abs(size - buffer))
    ways = [f"buffer={size} ({several(size // at_once, 'step')})" for size in buffers]
    share, left = divmod(buffer, world_size)
    roots = range(1, min(math.isqrt(share), LARGEST_ROOT) + 1) if not left else ()
    pairs = ((size, share // size) for size in roots if share % size == 0)
    fitting = sorted({size for pair in pairs for size in pair}, key=lambda n: abs(n - micro_batch))
    ways += [f"micro_batch={size} ({several(share // size, 'step')})" for size in fitting[:2]]
    raise BadUsage(
        f"buffer {buffer} is not a multiple of world_size {world_size} x micro_batch {micro_batch} "
        f"= {at_once}: gradient accumulation would be {buffer / at_once:.4g}",
        f"write {' or '.join(ways)}",
    )
