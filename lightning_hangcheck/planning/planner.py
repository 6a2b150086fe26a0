"""The whole plan: bytes of a model in one use, where they go, how fast that is, the ways out."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.planning.config import Fields, Weights, compute_bytes, family_of, is_gated
from lightning_hangcheck.planning.plan import GB, SPEEDS, Plan, Share, WayOut
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    from lightning_hangcheck.planning.plan import Machine, PlannedPhase, SpeedClass, Use

    Placing: TypeAlias = "Callable[[Sizes, tuple[int, ...]], Placement]"

FLOAT32 = 4
"""Bytes: norms and the logits of a token are computed in float32 whatever the model's own format
(LlamaRMSNorm.forward; GenerationMixin._sample)."""
KEPT = 4
"""Copies of each token's vector that live all through a layer: the embedding, the layer's input,
the residual and the normed input."""
ROUTED = 4
"""Copies of a token's vector for each expert that it goes to: chosen, sorted, answered, weighted
(transformers/integrations/moe.py, grouped_mm_experts_forward)."""
WRITTEN_OUT = 5
"""Copies of the wide vector in an activation that is computed term by term (NewGELUActivation)."""
RELATIVE_POSITIONS = 4
"""Copies of the table of relative positions, heads x context x context (T5Attention.forward)."""
WINDOWED = ("sliding_attention", "chunked_attention")
WITHOUT = ("linear_attention", "conv", "mamba")
"""Layers whose state does not grow with the context; it is small, and counted as nothing."""
WINDOW_IN_ALL_LAYERS = ("mistral", "mixtral", "starcoder2", "phi3")
"""Families that give every layer the window if there is one, and name no kinds of layers."""


class Sizes(Struct, frozen=True, kw_only=True):
    """Bytes of a model's parts.

    Attributes:
        pieces: Weights in the order of running: embeddings, each layer, norm and head.
        extras: Of the modules beside the model on the first GPU.
    """

    pieces: tuple[int, ...]
    cache: int
    activations: int
    extras: int
    extras_on_cpu: int
    quantized: bool

    @property
    def weights(self) -> int:
        """All weights."""
        return sum(self.pieces)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.pieces) - 2


def sizes_of(fields: Fields, weights: Weights, use: Use) -> Sizes:
    """Work out all bytes of a model in this use."""
    number = compute_bytes(use.dtype)
    pieces = (weights.before, *weights.blocks, weights.after)
    return Sizes(
        pieces=tuple(piece.bytes_in(use.dtype) for piece in pieces),
        cache=sum(cache_bytes(fields, use.context, use.batch, number)),
        activations=activation_bytes(fields, use.context, use.batch, number),
        extras=sum(extra.size for extra in use.extras if not extra.on_cpu),
        extras_on_cpu=sum(extra.size for extra in use.extras if extra.on_cpu),
        quantized=use.dtype in ("int8", "int4"),
    )


def activation_bytes(fields: Fields, context: int, batch: int, number_bytes: int) -> int:
    """Estimate the peak while the whole context is read at once, without gradients.

    One layer is alive at a time. Added to what lives all through it is its largest stage: attention
    with queries, keys and values, a rotated copy, and its output (never the square of scores, which
    ``sdpa`` does not hold); the feed-forward network with its wide vectors; or a norm in float32.
    After the last layer come the logits of one token a sequence, as ``generate`` asks for.

    Measured by following each tensor of small models on CPU, for seven families, contexts of 64 to
    1,500 tokens and two formats, it is right within a factor of 1.5
    (tests/planning/test_sizes.py). ``attn_implementation="eager"`` needs far more, with the
    square of the context.

    """
    wide = WRITTEN_OUT if fields.written_out else 3 if is_gated(fields) else 2
    feed = wide * fields.intermediate  # numbers of one token that live at once
    if fields.experts:
        feed = max(1, fields.experts_per_token) * (feed + ROUTED * fields.hidden)
    queries = fields.heads * fields.head_dim
    keys_and_values = 2 * fields.kv_heads * fields.head_dim
    stages = (
        number_bytes * (3 * queries + 2 * keys_and_values),
        number_bytes * feed,
        FLOAT32 * 2 * fields.hidden,
    )
    tokens = batch * context * (number_bytes * KEPT * fields.hidden + max(stages))
    if family_of(fields).relative_positions:
        tokens += number_bytes * RELATIVE_POSITIONS * fields.heads * context**2
    return max(tokens, batch * fields.vocabulary * (number_bytes + FLOAT32))


def cache_bytes(fields: Fields, context: int, batch: int, number_bytes: int) -> tuple[int, ...]:
    """Bytes of each layer's keys and values, as transformers' DynamicCache keeps them.

    ``2 * batch * kv_heads * tokens * head_dim`` numbers a layer (Pope et al. 2022, section 3.3). A
    layer with a sliding window keeps one token less than the window
    (transformers/cache_utils.py, DynamicSlidingWindowLayer). Latent attention keeps one compressed
    vector a token (transformers 5, models/deepseek_v3); before version 5 it was expanded.

    Returns:
        One figure a layer (of the decoder, where there is an encoder too); all 0 for a model that
        does not make text token by token.
    """
    keys_and_values = 2 * fields.kv_heads * fields.head_dim
    latent = fields.latent + fields.latent_position
    token = batch * number_bytes * (latent if fields.latent else keys_and_values)
    if fields.two_stacks:
        # the decoder's own tokens, and the encoder's once more: the context may be either's
        return (2 * token * context,) * (fields.decoder_layers or fields.layers)
    if not family_of(fields).generates:
        return (0,) * fields.layers
    everywhere = not fields.kinds and fields.model_type in WINDOW_IN_ALL_LAYERS
    windowed = min(context, max(1, (fields.window or context + 1) - 1))
    sizes = dict.fromkeys(WITHOUT, 0) | dict.fromkeys(WINDOWED, windowed)
    usual = windowed if everywhere else context
    kinds = (*fields.kinds, *[""] * fields.layers)[: fields.layers]
    return tuple(token * sizes.get(kind, usual) for kind in kinds)


BUFFER = 1.25
QUANTIZING_SHARE = 0.9
"""transformers leaves a tenth of each limit for quantizing (quantizer_bnb_8bit.py)."""
OWN_RULES = "accelerate's rules"
GPU_SHARE = 0.9
"""Of each GPU, for weights: what from_pretrained takes by itself too ("90% is a good compromise",
transformers/integrations/accelerate.py)."""
CUDA_CONTEXT = 500_000_000
"""Bytes that a process takes of each GPU before its first tensor: CUDA's context and the kernels of
its libraries. About 0.3 to 0.6 GB, by driver and GPU; nvidia-smi shows it."""


class Placement(Struct, frozen=True):
    """Whole layers and bytes of weights on each GPU, in main memory, and on disk, in this order."""

    layers: tuple[int, ...]
    weights: tuple[int, ...]
    by: str = OWN_RULES


def place(sizes: Sizes, limits: tuple[int, ...]) -> Placement:
    """Place all pieces.

    Args:
        sizes: Of the model.
        limits: ``max_memory`` of each GPU, then of the main memory; the disk takes the rest.
    """
    share = QUANTIZING_SHARE if sizes.quantized else 1.0
    last_gpu = len(limits) - 2
    if last_gpu > 0:  # balanced: each but the last takes a fair part
        fair = sizes.weights // (last_gpu + 1) + int(BUFFER * max(sizes.pieces))
        limits = (*(min(limit, fair) for limit in limits[:last_gpu]), *limits[last_gpu:])
    rooms = [*(int(limit * share) for limit in limits), None]
    main = {0, len(limits) - 1}
    used, layers = [0] * len(rooms), [0] * len(rooms)
    device, last = 0, len(sizes.pieces) - 1
    for index, piece in enumerate(sizes.pieces):
        to_come = max(sizes.pieces[index + 1 :], default=0)
        while (room := rooms[device]) is not None:
            if used[device] + piece + (to_come if device in main else 0) <= room:
                break
            device += 1
        used[device] += piece
        layers[device] += 0 < index < last
    return Placement(tuple(layers), tuple(used))


def fitting_limits(sizes: Sizes, machine: Machine, placing: Placing) -> tuple[int, ...]:
    """Choose max_memory: 90 % of each GPU, or less where what stands beside the weights needs more.

    What stands beside them depends on where the layers are, and that on the limits: so they are
    lowered until what was placed leaves the room that it needs. Room that was kept is never given
    back, so this ends.

    Returns:
        Bytes for each GPU, then for the main memory.
    """
    main = max(0, machine.cpu - sizes.extras_on_cpu)
    if not machine.gpus:
        return (max(0, main - sizes.cache - sizes.activations - sizes.extras),)
    tenths = [int(memory * GPU_SHARE) for memory in machine.gpus]
    kept = [0] * len(machine.gpus)
    for _ in range(sizes.layers + 1):
        left = [max(0, memory - room) for memory, room in zip(machine.gpus, kept, strict=True)]
        limits = (*map(min, tenths, left), main)
        shares = shares_of(sizes, machine, limits, placing(sizes, limits))
        needed = [share.cache + share.activations + share.extras + CUDA_CONTEXT for share in shares]
        if all(need <= room for need, room in zip(needed, kept, strict=False)):
            break
        kept = [max(pair) for pair in zip(needed, kept, strict=False)]
    return limits


def shares_of(
    sizes: Sizes, machine: Machine, limits: tuple[int, ...], placement: Placement
) -> tuple[Share, ...]:
    """Say what each device holds, GPUs first; main memory and disk only if they hold something.

    Layers that are offloaded run on the first GPU, so their keys and values are there.
    """
    gpus, layers = len(machine.gpus), max(1, sizes.layers)
    shares = []
    devices = [(str(number), memory) for number, memory in enumerate(machine.gpus)]
    for index, (name, memory) in enumerate([*devices, ("cpu", machine.cpu), ("disk", 0)]):
        is_gpu = index < gpus
        runs = is_gpu or (index == 0 and not gpus)
        mine = placement.layers[index] + (0 if index else sum(placement.layers[max(1, gpus) :]))
        share = Share(
            device=name,
            memory=memory,
            limit=limits[index] if index < len(limits) else 0,
            layers=placement.layers[index],
            weights=placement.weights[index],
            cache=sizes.cache * mine // layers if runs else 0,
            activations=sizes.activations if runs else 0,
            extras=(0 if index else sizes.extras) + (sizes.extras_on_cpu if name == "cpu" else 0),
        )
        taken = share.weights + share.cache + share.activations + share.extras
        taken += CUDA_CONTEXT if is_gpu else 0
        if is_gpu or taken:
            shares.append(replace(share, headroom=0 if name == "disk" else memory - taken))
    return tuple(shares)


BUS = 12e9
"""Bytes a second from main memory to a GPU. PCIe 4.0 with 16 lanes can carry 32e9; weights that
accelerate offloads lie in pageable memory, which goes through a buffer at about a third of that."""
DISK = 2e9
"""Bytes a second that a local NVMe disk reads; network storage is far slower."""
MAIN_MEMORY = 50e9
"""Bytes a second that a processor reads of its memory: two channels of DDR5-4800 carry 77e9."""
GPU_MEMORY = 1e12
"""Bytes a second that a GPU reads of its own memory, by their data sheets: RTX 4090 1.0e12, A100
1.6e12 to 2.0e12, H100 3.4e12, but L4 and T4 0.3e12."""
LAYER_S = 0.5e-3
"""Seconds in which Python starts the kernels of one layer, whatever they compute: a token of a
model of 32 layers takes 20 to 30 ms in `generate`, also where the GPU could read it in 5."""
ANSWER = 512
"""Tokens of a debugging run's longest answer, the cap that `generate` sets by default."""
ACCEPTABLE_S, SLOW_S = 300.0, 3600.0
"""Seconds for such an answer: `generate` warns from five minutes on; none waits beyond an hour."""
TIGHT = 0.05
"""Share of a GPU's memory that should be left: the allocator's fragments take some of it."""
MEANS: dict[SpeedClass, str] = {
    "fast": f"one GPU holds all, with {TIGHT:.0%} left for the allocator's fragments",
    "good": "GPUs hold all, and nothing is copied for a token",
    "acceptable": f"{ANSWER} tokens within {ACCEPTABLE_S / 60:.0f} minutes, weights copied for "
    "each; above that `generate` warns",
    "slow": f"{ANSWER} tokens within {SLOW_S / 60:.0f} minutes, weights copied for each; "
    "nobody waits longer for one answer",
    "too slow": f"{ANSWER} tokens take over {SLOW_S / 60:.0f} minutes, or it does not fit",
}
"""What each class promises, with the reason for its threshold."""


def seconds_per_pass(shares: tuple[Share, ...]) -> float:
    """Seconds that one token takes at least to carry offloaded weights; 0 without GPUs."""
    weights = {share.device: share.weights for share in shares}
    speed = BUS if "0" in weights else MAIN_MEMORY
    return weights.get("cpu", 0) / speed + weights.get("disk", 0) / DISK


def seconds_per_token(shares: tuple[Share, ...], layers: int) -> float:
    """Seconds that one token takes, about: each weight is read once, and each layer is started."""
    on_gpus = sum(share.weights + share.cache for share in shares if share.device.isdigit())
    return on_gpus / GPU_MEMORY + layers * LAYER_S + seconds_per_pass(shares)


def speed_of(shares: tuple[Share, ...]) -> tuple[SpeedClass, str]:
    """Return the class to expect, and why in one sentence."""
    short = next((share for share in shares if share.headroom < 0), None)
    if short is not None:
        place = "the main memory" if short.device == "cpu" else f"GPU {short.device}"
        return "too slow", f"it does not fit: {place} lacks {-short.headroom / GB:.1f} GB"
    seconds = seconds_per_pass(shares)
    if seconds:  # for example ``9 layers (3.9 GB) in main memory must be copied ...``
        answer_s, names = seconds * ANSWER, {"cpu": "in main memory", "disk": "on disk"}
        where = " and ".join(
            f"{several(share.layers, 'layer') if share.layers else 'what is outside the layers'} "
            f"({share.weights / GB:.1f} GB) {names[share.device]}"
            for share in shares
            if share.device in names and share.weights
        )
        has_gpu = any(share.device == "0" for share in shares)
        what = "must be copied to the GPU" if has_gpu else "must be read"
        answer = f"{answer_s / 60:.0f} minutes" if answer_s > 99 else "under 2 minutes"
        slow: SpeedClass = "slow" if answer_s <= SLOW_S else "too slow"
        reason = f"{seconds:.2g} s each, {answer} for {ANSWER} tokens"
        speed: SpeedClass = "acceptable" if answer_s <= ACCEPTABLE_S else slow
        return speed, f"{where} {what} for every token: {reason}"
    holding = sum(share.weights > 0 for share in shares)
    if holding > 1:
        return "good", f"all on {holding} GPUs, which work one after the other"
    tight = min(share.headroom / max(1, share.memory) for share in shares)
    left = f"all on one GPU, with {tight:.0%} of its memory left"
    return ("good", f"{left}: little for surprises") if tight < TIGHT else ("fast", left)


# The plan

TENTH_OF_GB = 10**8


class Model(Struct, frozen=True):
    """A model as far as planning knows it: its name, its sizes, its weights."""

    name: str
    fields: Fields
    weights: Weights


def outline(model: Model, machine: Machine, use: Use, placing: Placing = place) -> Plan:
    """Plan one use of a model on one machine."""
    sizes = sizes_of(model.fields, model.weights, use)
    limits = fitting_limits(sizes, machine, placing)
    placement = placing(sizes, limits)
    shares = shares_of(sizes, machine, limits, placement)
    speed, reason = speed_of(shares)
    away = -2 if machine.gpus else -1
    return Plan(
        model=model.name,
        parameters=model.weights.parameters,
        sureness=model.weights.sureness,
        source=model.weights.source,
        machine=machine,
        use=use,
        layers=sizes.layers,
        weights=sizes.weights,
        cache=sizes.cache,
        activations=sizes.activations,
        extras={extra.name: extra.size for extra in use.extras},
        shares=shares,
        # cut to a tenth of a GB, so that nobody gets more than was planned
        max_memory={
            "cpu" if at == len(limits) - 1 else str(at): f"{limit // TENTH_OF_GB / 10:g}GB"
            for at, limit in enumerate(limits)
        },
        offloaded_layers=sum(placement.layers[away:]),
        offloaded=sum(placement.weights[away:]),
        seconds_per_token=seconds_per_token(shares, sizes.layers),
        seconds_per_pass=seconds_per_pass(shares),
        speed=speed,
        reason=reason,
        placed_by=placement.by,
    )


MOST_GPUS = 16
LARGEST_GPU_GB = 512
LEAST_CONTEXT = 256


def ways_out(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Plan the usual changes, one at a time, each from the plan as it is."""

    def tried(change: str, machine: Machine = plan.machine, **changed: object) -> WayOut:
        made = outline(model, machine, replace(plan.use, **changed))
        better = SPEEDS.index(made.speed) < SPEEDS.index(plan.speed)
        told = "fits" if made.fits else "better" if better else "not enough"
        outcome = f"{told}: {made.reason}"
        return WayOut(change=change, outcome=outcome, fits=made.fits, speed=made.speed)

    # other formats, with what is gained only where it is
    names = {"bfloat16": "half the bytes", "int8": "8-bit", "int4": "4-bit"}
    wider = {"float32": ("bfloat16", "int8", "int4"), "int8": ("int4",), "int4": ()}
    for dtype in wider.get(plan.use.dtype, ("int8", "int4")):
        yield tried(f"{names[dtype]}: --dtype {dtype}", dtype=dtype)
    # what stands beside the model, each alone in main memory, then all of it
    extras, present = plan.use.extras, plan.machine.gpus
    on_gpu = [extra for extra in extras if not extra.on_cpu and extra.size and present]
    for moved in [[extra] for extra in on_gpu] + ([on_gpu] if len(on_gpu) > 1 else []):
        named = " and ".join(extra.name for extra in moved)
        options = " ".join(f"--extra {extra.name}={extra.size / GB:g}@cpu" for extra in moved)
        kept = tuple(replace(extra, on_cpu=extra.on_cpu or extra in moved) for extra in extras)
        yield tried(f"keep {named} on the CPU: {options}", extras=kept)
    # the least number of such GPUs, and the smallest single one
    if present:
        size = f"{present[-1] / GB:.0f} GB"
        for count in range(len(present) + 1, MOST_GPUS + 1):
            machine = replace(plan.machine, gpus=present + (present[-1],) * (count - len(present)))
            way = tried(f"{count} GPUs of {size}", machine)
            if way.fits:
                yield way
                break
        else:
            yield replace(way, change=f"more GPUs of {size}, up to {MOST_GPUS}")
    least = smallest_gpu(model, plan)
    if least:
        yield tried(f"one GPU of {least} GB", replace(plan.machine, gpus=(least * GB,)))
    # half the context until it fits, and one sequence at a time
    context, way_out = plan.use.context // 2, None
    while context >= LEAST_CONTEXT and not (way_out and way_out.fits):
        way_out = tried(f"smaller context: --context {context}", context=context)
        context //= 2
    yield from filter(None, [way_out])
    if plan.use.batch > 1:
        yield tried("one sequence at a time: --batch 1", batch=1)


def smallest_gpu(model: Model, plan: Plan) -> int | None:
    """Return the GB of the smallest single GPU that would hold all; None if none would."""

    def fits(size: int) -> bool:
        return outline(model, replace(plan.machine, gpus=(size * GB,)), plan.use).fits

    least = 1 + bisect_left(range(1, LARGEST_GPU_GB + 1), True, key=fits)  # larger fits no less
    return least if least <= LARGEST_GPU_GB else None


UNUSED = 0.5
"""Share of the GPUs' memory below which a smaller one is sold: 16, 24, 48, 80, 141 GB."""


def make_plan(
    model: Model,
    machine: Machine,
    use: Use,
    placing: Placing = place,
    assumed: tuple[str, ...] = (),
    phases: tuple[PlannedPhase, ...] = (),
) -> Plan:
    """Plan one use of a model on one machine, with the ways out if it does not fit."""
    plans = {phase.name: outline(model, machine, phase.use_in(use), placing) for phase in phases}
    if plans:  # the slower class first, then what is carried, then what is left
        plan = max(
            plans.values(),
            key=lambda one: (SPEEDS.index(one.speed), one.seconds_per_pass, -one.least_left),
        )
    else:
        plan = outline(model, machine, use, placing)
    hardest = next((name for name, one in plans.items() if one is plan), "")
    placed_for = (f"placed for {hardest}, the phase that needs the most",) if hardest else ()
    ways = [] if plan.speed in ("fast", "good") else list(ways_out(model, plan))
    if plan.fits:  # in main memory: only what would be faster helps
        ways = [way for way in ways if SPEEDS.index(way.speed) < SPEEDS.index(plan.speed)]
    total = sum(plan.machine.gpus)
    used = sum(share.memory - share.headroom for share in plan.shares if share.device.isdigit())
    least = smallest_gpu(model, plan) if plan.fits and used < UNUSED * total else None
    unused = (
        f"{used / GB:.1f} of {total / GB:.0f} GB of GPU memory are used, the rest is paid for "
        f"and stays empty: one GPU of {least} GB would do, or do more at a time: --batch"
    )
    return replace(
        plan,
        unused=(unused,) if least is not None else (),
        notes=(*assumed, *placed_for, *_notes(model, machine, plan.use)),
        phases=tuple(replace(one, name=name) for name, one in plans.items()),
        ways_out=tuple(sorted(ways, key=lambda way: not way.fits)),
    )


def _notes(model: Model, machine: Machine, use: Use) -> Iterator[str]:
    """Say what the plan rests on where that is not plain."""
    fields = model.fields
    if model.weights.sureness == "guessed":
        yield (
            f"model_type {fields.model_type!r} is not known here: weights, cache and activations "
            "are those of a Llama of these sizes, which may be far off; "
            "install transformers and accelerate to count them"
        )
    if fields.positions and use.context > fields.positions:
        yield (
            f"the context of {use.context} tokens is longer than the {fields.positions} that the "
            "model was made for"
        )
    if use.dtype in ("int8", "int4") and fields.experts:
        yield (
            "8-bit and 4-bit loading by bitsandbytes leaves experts that are kept in one tensor "
            "as they are"
        )
    if machine.gpus and any(not extra.on_cpu for extra in use.extras):
        yield "what --extra names is counted on GPU 0; @cpu behind a size moves it away"
    yield (
        "the time of an answer is an estimate from usual hardware, without the reading of the "
        "prompt; hc.section around generate measures yours"
    )
    yield (
        "activations are an estimate, right within a factor of 1.5; training needs gradients and "
        "optimizer states on top, which are not in this plan"
    )
