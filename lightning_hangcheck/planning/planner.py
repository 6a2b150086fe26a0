"""Makes a plan: bytes of a model in one use, their placement, speed, and ways out."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.planning.config import QUANTIZED, Fields, Weights, compute_bytes
from lightning_hangcheck.planning.plan import GB, SPEEDS, Plan, Share, WayOut
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.planning.plan import Machine, PlannedPhase, SpeedClass, Use

# Activations and cache

FLOAT32 = 4
"""Bytes: norms and a token's logits are computed in float32 whatever the model's format
(LlamaRMSNorm.forward; GenerationMixin._sample)."""
KEPT = 4
"""Copies of each token's vector that live throughout a layer: the embedding, the layer's input, the
residual and the normed input."""
ROUTED = 4
"""Copies of a token's vector for each of its experts: chosen, sorted, answered, weighted
(transformers/integrations/moe.py, grouped_mm_experts_forward)."""
WRITTEN_OUT = 5
"""Copies of the wide vector in an activation computed term by term (NewGELUActivation)."""
RELATIVE_POSITIONS = 4  # Copies of the table of relative positions (T5Attention.forward).
WINDOWED = ("sliding_attention", "chunked_attention")
WITHOUT = ("linear_attention", "conv", "mamba")
"""Layers whose state does not grow with the context; being small, it is not counted."""
WINDOW_IN_ALL_LAYERS = ("mistral", "mixtral", "starcoder2", "phi3")
"""Families that apply a window to every layer and name no kinds of layers."""
ENCODERS = ("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta")
"""Families that do not generate text token by token, and so keep no cache."""

# Placement

BUFFER = 1.25
QUANTIZING_SHARE = 0.9
"""transformers leaves a tenth of each limit for quantizing (quantizer_bnb_8bit.py)."""
GPU_SHARE = 0.9
"""Of each GPU, for weights; from_pretrained's default too ("90% is a good compromise",
transformers/integrations/accelerate.py)."""
CUDA_CONTEXT = 500_000_000
"""Bytes that a process takes of each GPU before its first tensor: CUDA's context and its libraries'
kernels. 0.3 to 0.6 GB by driver and GPU, as nvidia-smi shows."""
TENTH_OF_GB = 10**8

# Speed

BUS = 12e9
"""Bytes per second from main memory to a GPU. PCIe 4.0 x16 carries 32e9, but accelerate's offloaded
weights are in pageable memory, copied through a buffer at about a third of that."""
DISK = 2e9  # Bytes per second of a local NVMe disk; network storage is far slower.
MAIN_MEMORY = 50e9
"""Bytes per second that a processor reads of its memory; two channels of DDR5-4800 carry 77e9."""
GPU_MEMORY = 1e12
"""Bytes per second that a GPU reads of its memory, by data sheets: RTX 4090 1.0e12, A100 1.6e12 to
2.0e12, H100 3.4e12, but L4 and T4 0.3e12."""
LAYER_S = 0.5e-3
"""Seconds in which Python launches one layer's kernels, whatever they compute: a token of a model
of 32 layers takes 20 to 30 ms in `generate`, even if the GPU could read the weights in 5 ms."""
ANSWER = 512  # Tokens of a debugging run's longest answer; the default cap of `generate`.
ACCEPTABLE_S, SLOW_S = 300.0, 3600.0
"""Seconds per answer: `generate` warns from 5 minutes on; nobody waits beyond 1 hour."""
TIGHT = 0.05
"""Share of a GPU's memory that should stay free for the allocator's fragments."""
MEANS: dict[SpeedClass, str] = {
    "fast": f"one GPU holds all, with {TIGHT:.0%} left for the allocator's fragments",
    "good": "GPUs hold all, and nothing is copied for a token",
    "acceptable": f"{ANSWER} tokens within {ACCEPTABLE_S / 60:.0f} minutes, weights copied for "
    "each; above that `generate` warns",
    "slow": f"{ANSWER} tokens within {SLOW_S / 60:.0f} minutes, weights copied for each; "
    "nobody waits longer for one answer",
    "too slow": f"{ANSWER} tokens take over {SLOW_S / 60:.0f} minutes, or it does not fit",
}
"""Definition of each class, with the reason for its threshold."""

# Ways out

MOST_GPUS = 16
LARGEST_GPU_GB = 512
LEAST_CONTEXT = 256
UNUSED = 0.5  # Share of used GPU memory below which a smaller GPU is sold: 16, 24, 48, 80, 141 GB.


def activation_bytes(fields: Fields, context: int, batch: int, number_bytes: int) -> int:
    """Estimate peak bytes of activations for the whole context at once, without gradients.

    One layer is alive at a time. Its largest stage is added to what lives throughout the layer. The
    stages are: attention with queries, keys and values, a rotated copy, and its output (``sdpa``
    does not hold the square of scores); the feed-forward network with its wide vectors; a norm in
    float32. After the last layer come the logits of one token per sequence, as ``generate``
    requests.

    Compared with each tensor of small models on CPU (seven families, contexts of 64 to 1,500
    tokens, two formats), the estimate is right within a factor of 1.5
    (tests/planning/test_sizes.py). ``attn_implementation="eager"`` needs far more, with the square
    of the context.
    """
    wide = WRITTEN_OUT if fields.written_out else 3 if fields.is_gated else 2
    feed = wide * fields.intermediate  # numbers of one token alive at once
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
    if fields.relative_positions:
        tokens += number_bytes * RELATIVE_POSITIONS * fields.heads * context**2
    return max(tokens, batch * fields.vocabulary * (number_bytes + FLOAT32))


def cache_bytes(fields: Fields, context: int, batch: int, number_bytes: int) -> tuple[int, ...]:
    """Bytes of each layer's keys and values, as transformers' DynamicCache keeps them.

    A layer has ``2 * batch * kv_heads * tokens * head_dim`` numbers (Pope et al. 2022, section
    3.3). A sliding-window layer keeps one token less than the window (transformers/cache_utils.py,
    DynamicSlidingWindowLayer). Latent attention keeps one compressed vector per token (transformers
    5, models/deepseek_v3); before version 5 it was expanded.

    Returns:
        Bytes per layer (with two stacks, per decoder layer); all 0 for a model that does not
        generate text token by token.
    """
    keys_and_values = 2 * fields.kv_heads * fields.head_dim
    latent = fields.latent + fields.latent_position
    token = batch * number_bytes * (latent if fields.latent else keys_and_values)
    if fields.two_stacks:
        # both the decoder's and the encoder's tokens: the context may be either's
        return (2 * token * context,) * (fields.decoder_layers or fields.layers)
    if fields.model_type in ENCODERS:
        return (0,) * fields.layers
    everywhere = not fields.kinds and fields.model_type in WINDOW_IN_ALL_LAYERS
    windowed = min(context, max(1, (fields.window or context + 1) - 1))
    sizes = dict.fromkeys(WITHOUT, 0) | dict.fromkeys(WINDOWED, windowed)
    usual = windowed if everywhere else context
    kinds = (*fields.kinds, *[""] * fields.layers)[: fields.layers]
    return tuple(token * sizes.get(kind, usual) for kind in kinds)


class Model(Struct, frozen=True):
    """A model to plan: its name, sizes and weights."""

    name: str
    fields: Fields
    weights: Weights


class Sizes(Struct, frozen=True, kw_only=True):
    """Bytes of a model's parts in one use; ``pieces`` in the order of `Weights`."""

    pieces: tuple[int, ...]
    cache: int
    activations: int
    extras: int
    extras_on_cpu: int
    quantized: bool


def sizes_of(fields: Fields, weights: Weights, use: Use) -> Sizes:
    """Compute all bytes of a model in this use."""
    number = compute_bytes(use.dtype)
    return Sizes(
        pieces=tuple(piece.bytes_in(use.dtype) for piece in weights.pieces),
        cache=sum(cache_bytes(fields, use.context, use.batch, number)),
        activations=activation_bytes(fields, use.context, use.batch, number),
        extras=sum(extra.size for extra in use.extras if not extra.on_cpu),
        extras_on_cpu=sum(extra.size for extra in use.extras if extra.on_cpu),
        quantized=use.dtype in QUANTIZED,
    )


def place(sizes: Sizes, limits: tuple[int, ...]) -> list[tuple[int, int]]:
    """Place all pieces by accelerate's rules.

    Args:
        sizes: Bytes of the model's parts.
        limits: ``max_memory`` of each GPU, then of main memory; the disk takes the rest.

    Returns:
        Whole layers and bytes of weights on each GPU, in main memory, and on disk, in this order.
    """
    last_gpu = len(limits) - 2
    if last_gpu > 0:  # balanced: every GPU but the last takes a fair share
        fair = sum(sizes.pieces) // (last_gpu + 1) + int(BUFFER * max(sizes.pieces))
        limits = (*(min(limit, fair) for limit in limits[:last_gpu]), *limits[last_gpu:])
    share = QUANTIZING_SHARE if sizes.quantized else 1.0
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
    return list(zip(layers, used, strict=True))


def fit(sizes: Sizes, machine: Machine) -> tuple[tuple[int, ...], tuple[Share, ...]]:
    """Choose max_memory: 90 % of each GPU, or less if other data there needs more room.

    That data depends on where the layers are, which depends on the limits. So the limits are
    lowered until the placement leaves enough room. Reserved room never shrinks, so the loop ends.

    Returns:
        Limits in bytes for each GPU, then for main memory; and what each device then holds.
    """
    main = max(0, machine.cpu - sizes.extras_on_cpu)
    limits: tuple[int, ...]
    if not machine.gpus:
        limits = (max(0, main - sizes.cache - sizes.activations - sizes.extras),)
        return limits, _shares(sizes, machine, limits)
    tenths = [int(memory * GPU_SHARE) for memory in machine.gpus]
    kept = [0] * len(machine.gpus)
    for _ in range(len(sizes.pieces) - 1):
        left = [max(0, memory - room) for memory, room in zip(machine.gpus, kept, strict=True)]
        limits = (*map(min, tenths, left), main)
        shares = _shares(sizes, machine, limits)
        needed = [share.cache + share.activations + share.extras + CUDA_CONTEXT for share in shares]
        if all(need <= room for need, room in zip(needed, kept, strict=False)):
            break
        kept = [max(pair) for pair in zip(needed, kept, strict=False)]
    return limits, shares


def _shares(sizes: Sizes, machine: Machine, limits: tuple[int, ...]) -> tuple[Share, ...]:
    """Return shares; offloaded layers run on the first GPU and have keys and values there."""
    gpus, every, shares = len(machine.gpus), max(1, len(sizes.pieces) - 2), []
    placed = place(sizes, limits)
    away = sum(layers for layers, _ in placed[max(1, gpus) :])
    devices = [(str(number), memory) for number, memory in enumerate(machine.gpus)]
    for index, (name, memory) in enumerate([*devices, ("cpu", machine.cpu), ("disk", 0)]):
        is_gpu, (layers, weights) = index < gpus, placed[index]
        runs = is_gpu or (index == 0 and not gpus)
        share = Share(
            device=name,
            memory=memory,
            limit=limits[index] if index < len(limits) else 0,
            layers=layers,
            weights=weights,
            cache=sizes.cache * (layers + (0 if index else away)) // every if runs else 0,
            activations=sizes.activations if runs else 0,
            extras=(0 if index else sizes.extras) + (sizes.extras_on_cpu if name == "cpu" else 0),
        )
        taken = share.weights + share.cache + share.activations + share.extras
        taken += CUDA_CONTEXT if is_gpu else 0
        if is_gpu or taken:
            shares.append(replace(share, headroom=0 if name == "disk" else memory - taken))
    return tuple(shares)


def _speed(shares: tuple[Share, ...], seconds: float) -> tuple[SpeedClass, str]:
    """Return the speed class for these seconds of copying per token, and the reason."""
    short = next((share for share in shares if share.headroom < 0), None)
    if short is not None:
        place = "the main memory" if short.device == "cpu" else f"GPU {short.device}"
        return "too slow", f"it does not fit: {place} lacks {-short.headroom / GB:.1f} GB"
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


def outline(model: Model, machine: Machine, use: Use) -> Plan:
    """Plan one use of a model on one machine."""
    sizes = sizes_of(model.fields, model.weights, use)
    limits, shares = fit(sizes, machine)
    layers, weights = len(sizes.pieces) - 2, {share.device: share.weights for share in shares}
    # per token: read each weight once, copy what is offloaded, launch each layer
    to_gpu = BUS if machine.gpus else MAIN_MEMORY
    carrying_s = weights.get("cpu", 0) / to_gpu + weights.get("disk", 0) / DISK
    on_gpus = sum(share.weights + share.cache for share in shares if share.device.isdigit())
    speed, reason = _speed(shares, carrying_s)
    at_home = [share for share in shares if share.device in ("cpu", "disk")]
    offloaded = [share for share in at_home if machine.gpus or share.device == "disk"]
    return Plan(
        model=model.name,
        parameters=model.weights.parameters,
        sureness=model.weights.sureness,
        source=model.weights.source,
        machine=machine,
        use=use,
        layers=layers,
        weights=sum(sizes.pieces),
        cache=sizes.cache,
        activations=sizes.activations,
        extras={extra.name: extra.size for extra in use.extras},
        shares=shares,
        # rounded down to 0.1 GB, so that nothing gets more than was planned
        max_memory={
            "cpu" if at == len(limits) - 1 else str(at): f"{limit // TENTH_OF_GB / 10:g}GB"
            for at, limit in enumerate(limits)
        },
        offloaded_layers=sum(share.layers for share in offloaded),
        offloaded=sum(share.weights for share in offloaded),
        seconds_per_token=on_gpus / GPU_MEMORY + layers * LAYER_S + carrying_s,
        seconds_per_pass=carrying_s,
        speed=speed,
        reason=reason,
    )


def ways_out(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Plan the usual changes, each applied alone to the given plan."""

    def tried(change: str, machine: Machine = plan.machine, **changed: object) -> WayOut:
        made = outline(model, machine, replace(plan.use, **changed))
        better = SPEEDS.index(made.speed) < SPEEDS.index(plan.speed)
        result = "fits" if made.fits else "better" if better else "not enough"
        outcome = f"{result}: {made.reason}"
        return WayOut(change=change, outcome=outcome, fits=made.fits, speed=made.speed)

    # other formats, only those that are smaller
    names = {"bfloat16": "half the bytes", "int8": "8-bit", "int4": "4-bit"}
    wider = {"float32": ("bfloat16", "int8", "int4"), "int8": ("int4",), "int4": ()}
    for dtype in wider.get(plan.use.dtype, ("int8", "int4")):
        yield tried(f"{names[dtype]}: --dtype {dtype}", dtype=dtype)
    # extras in main memory: each alone, then all
    extras, present = plan.use.extras, plan.machine.gpus
    on_gpu = [extra for extra in extras if not extra.on_cpu and extra.size and present]
    for moved in [[extra] for extra in on_gpu] + ([on_gpu] if len(on_gpu) > 1 else []):
        named = " and ".join(extra.name for extra in moved)
        options = " ".join(f"--extra {extra.name}={extra.size / GB:g}@cpu" for extra in moved)
        kept = tuple(replace(extra, on_cpu=extra.on_cpu or extra in moved) for extra in extras)
        yield tried(f"keep {named} on the CPU: {options}", extras=kept)
    # the smallest number of such GPUs, and the smallest single one
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
    if least := smallest_gpu(model, plan):
        yield tried(f"one GPU of {least} GB", replace(plan.machine, gpus=(least * GB,)))
    # halve the context until it fits; one sequence at a time
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

    least = 1 + bisect_left(range(1, LARGEST_GPU_GB + 1), True, key=fits)  # larger GPUs fit too
    return least if least <= LARGEST_GPU_GB else None


def make_plan(
    model: Model,
    machine: Machine,
    use: Use,
    assumed: tuple[str, ...] = (),
    phases: tuple[PlannedPhase, ...] = (),
) -> Plan:
    """Plan one use of a model on one machine, with the ways out if it does not fit."""
    plans = {phase.name: outline(model, machine, phase.use_in(use)) for phase in phases}
    # slowest class first, then most copied, then least left
    plan = max(
        plans.values() or [outline(model, machine, use)],
        key=lambda plan: (SPEEDS.index(plan.speed), plan.seconds_per_pass, -plan.least_left),
    )
    hardest = next((name for name, made in plans.items() if made is plan), "")
    placed_for = (f"placed for {hardest}, the phase that needs the most",) if hardest else ()
    ways = [] if plan.speed in ("fast", "good") else list(ways_out(model, plan))
    if plan.fits:  # in main memory: only faster changes help
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
        phases=tuple(replace(made, name=name) for name, made in plans.items()),
        ways_out=tuple(sorted(ways, key=lambda way: not way.fits)),
    )


def _notes(model: Model, machine: Machine, use: Use) -> Iterator[str]:
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
    if use.dtype in QUANTIZED and fields.experts:
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
