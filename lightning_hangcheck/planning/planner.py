"""Makes a plan: bytes of a model in one use, their placement, speed, and ways out."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.planning.plan import GB, QUANTIZED, SPEEDS, Plan, Share, WayOut
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from lightning_hangcheck.planning.config import Fields
    from lightning_hangcheck.planning.plan import Machine, Model, PlannedPhase, SpeedClass, Use

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
WIDE, WRITTEN_OUT = 3, 5
"""Copies of the feed-forward network's wide vector: gate, up and their product (LlamaMLP), or in an
activation computed term by term (NewGELUActivation)."""
RELATIVE_POSITIONS = 4  # Copies of the table of relative positions (T5Attention.forward).

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

SMALLER = {"float32": ("bfloat16", "int8", "int4"), "int8": ("int4",), "int4": ()}
NAMES = {"bfloat16": "half the bytes", "int8": "8-bit", "int4": "4-bit"}
MOST_GPUS = 16
LARGEST_GPU_GB = 512
LEAST_CONTEXT = 256
UNUSED = 0.5  # Share of used GPU memory below which a smaller GPU is sold: 16, 24, 48, 80, 141 GB.


def number_bytes(use: Use) -> int:
    """Bytes per number in activations and cache; quantized weights compute in 16 bits."""
    return 4 if use.dtype == "float32" else 2


def activation_bytes(fields: Fields, use: Use) -> int:
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
    size, hidden = number_bytes(use), fields.hidden
    feed = (WRITTEN_OUT if fields.written_out else WIDE) * fields.intermediate
    if fields.experts:
        feed = max(1, fields.experts_per_token) * (feed + ROUTED * hidden)
    attention = (3 * fields.heads + 4 * fields.kv_heads) * fields.head_dim
    stages = size * attention, size * feed, FLOAT32 * 2 * hidden
    tokens = use.batch * use.context * (size * KEPT * hidden + max(stages))
    if fields.relative_positions:
        tokens += size * RELATIVE_POSITIONS * fields.heads * use.context**2
    return max(tokens, use.batch * fields.vocabulary * (size + FLOAT32))


def cache_bytes(fields: Fields, use: Use) -> int:
    """Bytes of keys and values, as transformers' DynamicCache keeps them.

    A layer has ``2 * batch * kv_heads * tokens * head_dim`` numbers (Pope et al. 2022, section
    3.3). Latent attention keeps one compressed vector per token (transformers 5,
    models/deepseek_v3); before version 5 it was expanded. With two stacks, a decoder layer keeps
    the decoder's and the encoder's tokens: the context may be either's.
    """
    numbers = 2 * fields.kv_heads * fields.head_dim
    if fields.latent:
        numbers = fields.latent + fields.latent_position
    tokens = sum(min(use.context, kept) for kept in fields.kept)
    return use.batch * number_bytes(use) * numbers * tokens * (2 if fields.two_stacks else 1)


def piece_bytes(model: Model, use: Use) -> list[int]:
    """Bytes of each piece of the weights; what is not quantized stays in 16 bits."""
    size, smaller = number_bytes(use), QUANTIZED.get(use.dtype)
    return [
        piece.parameters * size
        if smaller is None
        else round((piece.parameters - piece.linear) * size + piece.linear * smaller)
        for piece in model.pieces
    ]


def place(pieces: Sequence[int], limits: Sequence[int], share: float) -> list[tuple[int, int]]:
    """Place all pieces by accelerate's rules.

    Args:
        pieces: Bytes of each piece.
        limits: ``max_memory`` of each GPU, then of main memory; the disk takes the rest.
        share: What of each limit is used.

    Returns:
        Whole layers and bytes of weights on each GPU, in main memory, and on disk, in this order.
    """
    last_gpu = len(limits) - 2
    if last_gpu > 0:  # balanced: every GPU but the last takes a fair share
        fair = sum(pieces) // (last_gpu + 1) + int(BUFFER * max(pieces))
        limits = (*(min(limit, fair) for limit in limits[:last_gpu]), *limits[last_gpu:])
    rooms = [*(int(limit * share) for limit in limits), None]
    used, layers = [0] * len(rooms), [0] * len(rooms)
    device = 0
    for index, piece in enumerate(pieces):
        to_come = max(pieces[index + 1 :], default=0)
        while (room := rooms[device]) is not None:
            # the first GPU and main memory keep room to bring in the largest layer to come
            coming = to_come if device in (0, len(limits) - 1) else 0
            if used[device] + piece + coming <= room:
                break
            device += 1
        used[device] += piece
        layers[device] += 0 < index < len(pieces) - 1
    return list(zip(layers, used, strict=True))


def spread(model: Model, machine: Machine, use: Use) -> tuple[list[int], list[Share]]:
    """Choose max_memory: 90 % of each GPU, or less if other data there needs more room.

    That data depends on where the layers are, which depends on the limits. So the limits are
    lowered until the placement leaves enough room. Reserved room never shrinks, so the loop ends.
    Offloaded layers run on the first GPU and have keys and values there.

    Returns:
        Limits in bytes for each GPU, then for main memory; and what each device then holds.
    """
    pieces, gpus = piece_bytes(model, use), len(machine.gpus)
    share_used = QUANTIZING_SHARE if use.dtype in QUANTIZED else 1.0
    cache, activations = cache_bytes(model.fields, use), activation_bytes(model.fields, use)
    beside = sum(extra.size for extra in use.extras if not extra.on_cpu)
    on_cpu = sum(extra.size for extra in use.extras if extra.on_cpu)
    own = 0 if gpus else cache + activations + beside
    main = max(0, machine.cpu - on_cpu - own)
    every = max(1, len(pieces) - 2)
    kept = [0] * gpus
    while True:
        rooms = zip(machine.gpus, kept, strict=True)
        limits = [min(int(size * GPU_SHARE), max(0, size - room)) for size, room in rooms]
        limits.append(main)
        placed = place(pieces, limits, share_used)
        away = sum(layers for layers, _ in placed[max(1, gpus) :])
        shares, taken = [], []
        for at, (layers, weights) in enumerate(placed):
            runs = at < max(1, gpus)  # else it only stores
            share = Share(
                device="disk" if at > gpus else "cpu" if at == gpus else str(at),
                memory=(*machine.gpus, machine.cpu, 0)[at],
                limit=(*limits, 0)[at],
                layers=layers,
                weights=weights,
                cache=cache * (layers + (0 if at else away)) // every if runs else 0,
                activations=activations if runs else 0,
                extras=(0 if at else beside) + (on_cpu if at == gpus else 0),
            )
            other = share.cache + share.activations + share.extras
            taken.append(other + (CUDA_CONTEXT if at < gpus else 0))
            left = 0 if at > gpus else share.memory - weights - taken[at]
            if at < gpus or weights or other:
                shares.append(replace(share, headroom=left))
        needed = [max(pair) for pair in zip(taken, kept, strict=False)]
        if needed == kept:
            return limits, shares
        kept = needed


def outline(model: Model, machine: Machine, use: Use) -> Plan:
    """Plan one use of a model on one machine."""
    limits, shares = spread(model, machine, use)
    layers = len(model.pieces) - 2
    held = {share.device: share for share in shares}
    stored = [held[name] for name in ("cpu", "disk") if name in held]
    # per token: read each weight once, copy what is offloaded, launch each layer
    rates = {"cpu": BUS if machine.gpus else MAIN_MEMORY, "disk": DISK}
    copying_s = sum(share.weights / rates[share.device] for share in stored)
    on_gpus = [share for share in shares if share not in stored]
    reading_s = sum(share.weights + share.cache for share in on_gpus) / GPU_MEMORY
    offloaded = [share for share in stored if machine.gpus or share.device == "disk"]
    speed, reason = _speed(shares, copying_s)
    return Plan(
        model=model.name,
        parameters=sum(piece.parameters for piece in model.pieces),
        source=model.source,
        machine=machine,
        use=use,
        layers=layers,
        weights=sum(share.weights for share in shares),
        cache=cache_bytes(model.fields, use),
        activations=activation_bytes(model.fields, use),
        extras={extra.name: extra.size for extra in use.extras},
        shares=tuple(shares),
        # rounded down to 0.1 GB, so that nothing gets more than was planned
        max_memory={
            "cpu" if at == len(machine.gpus) else str(at): f"{limit // TENTH_OF_GB / 10:g}GB"
            for at, limit in enumerate(limits)
        },
        offloaded_layers=sum(share.layers for share in offloaded),
        offloaded=sum(share.weights for share in offloaded),
        seconds_per_token=reading_s + layers * LAYER_S + copying_s,
        seconds_per_pass=copying_s,
        speed=speed,
        reason=reason,
    )


def _speed(shares: Sequence[Share], seconds: float) -> tuple[SpeedClass, str]:
    """Return the speed class for these seconds of copying per token, and the reason."""
    short = next((share for share in shares if share.headroom < 0), None)
    if short is not None:
        where = "the main memory" if short.device == "cpu" else f"GPU {short.device}"
        return "too slow", f"it does not fit: {where} lacks {-short.headroom / GB:.1f} GB"
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
        speed: SpeedClass = "acceptable" if answer_s <= ACCEPTABLE_S else slow
        reason = f"{seconds:.2g} s each, {answer} for {ANSWER} tokens"
        return speed, f"{where} {what} for every token: {reason}"
    holding = sum(share.weights > 0 for share in shares)
    if holding > 1:
        return "good", f"all on {holding} GPUs, which work one after the other"
    tight = min(share.headroom / max(1, share.memory) for share in shares)
    left = f"all on one GPU, with {tight:.0%} of its memory left"
    return ("good", f"{left}: little for surprises") if tight < TIGHT else ("fast", left)


def ways_out(model: Model, plan: Plan) -> Iterator[WayOut]:
    """Plan the usual changes, each applied alone to the given plan."""

    def tried(change: str, machine: Machine = plan.machine, **changed: object) -> WayOut:
        made = outline(model, machine, replace(plan.use, **changed))
        better = SPEEDS.index(made.speed) < SPEEDS.index(plan.speed)
        result = "fits" if made.fits else "better" if better else "not enough"
        outcome = f"{result}: {made.reason}"
        return WayOut(change=change, outcome=outcome, fits=made.fits, speed=made.speed)

    def first_fitting(ways: Iterable[WayOut]) -> Iterator[WayOut]:
        """Yield the first that fits, else the last."""
        last = None
        for last in ways:
            if last.fits:
                break
        yield from filter(None, [last])

    for dtype in SMALLER.get(plan.use.dtype, ("int8", "int4")):
        yield tried(f"{NAMES[dtype]}: --dtype {dtype}", dtype=dtype)
    # extras in main memory: each alone, then all
    extras, gpus = plan.use.extras, plan.machine.gpus
    on_gpu = [extra for extra in extras if not extra.on_cpu and extra.size and gpus]
    for moved in [[extra] for extra in on_gpu] + ([on_gpu] if len(on_gpu) > 1 else []):
        named = " and ".join(extra.name for extra in moved)
        options = " ".join(f"--extra {extra.name}={extra.size / GB:g}@cpu" for extra in moved)
        kept = tuple(replace(extra, on_cpu=extra.on_cpu or extra in moved) for extra in extras)
        yield tried(f"keep {named} on the CPU: {options}", extras=kept)
    if gpus:
        yield from first_fitting(
            tried(
                f"{count} GPUs of {gpus[-1] / GB:.0f} GB",
                replace(plan.machine, gpus=gpus + gpus[-1:] * (count - len(gpus))),
            )
            for count in range(len(gpus) + 1, MOST_GPUS + 1)
        )
    if least := smallest_gpu(model, plan):
        yield tried(f"one GPU of {least} GB", replace(plan.machine, gpus=(least * GB,)))
    halves = (plan.use.context >> times for times in range(1, 30))
    yield from first_fitting(
        tried(f"smaller context: --context {context}", context=context)
        for context in halves
        if context >= LEAST_CONTEXT
    )
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
    assumed: Iterable[str] = (),
    phases: Iterable[PlannedPhase] = (),
) -> Plan:
    """Plan one use of a model on one machine, with the ways out if it does not fit."""
    plans = [replace(outline(model, machine, each.use_in(use)), name=each.name) for each in phases]
    # slowest class first, then most copied, then least left
    plan = max(
        plans or [outline(model, machine, use)],
        key=lambda plan: (SPEEDS.index(plan.speed), plan.seconds_per_pass, -plan.least_left),
    )
    notes, fields = list(assumed), model.fields
    if plan.name:
        notes.append(f"placed for {plan.name}, the phase that needs the most")
    if 0 < fields.positions < plan.use.context:
        notes.append(
            f"the context of {plan.use.context} tokens is longer than the {fields.positions} that "
            "the model was made for"
        )
    if plan.use.dtype in QUANTIZED and fields.experts:
        notes.append(
            "8-bit and 4-bit loading by bitsandbytes leaves experts that are kept in one tensor "
            "as they are"
        )
    if machine.gpus and any(not extra.on_cpu for extra in plan.use.extras):
        notes.append("what --extra names is counted on GPU 0; @cpu behind a size moves it away")
    notes.append(
        "the time of an answer is an estimate from usual hardware, without the reading of the "
        "prompt; hc.section around generate measures yours"
    )
    notes.append(
        "activations are an estimate, right within a factor of 1.5; training needs gradients and "
        "optimizer states on top, which are not in this plan"
    )
    ways = [] if plan.speed in ("fast", "good") else list(ways_out(model, plan))
    if plan.fits:  # in main memory: only faster changes help
        ways = [way for way in ways if SPEEDS.index(way.speed) < SPEEDS.index(plan.speed)]
    total = sum(machine.gpus)
    used = sum(share.memory - share.headroom for share in plan.shares if share.device.isdigit())
    unused: tuple[str, ...] = ()
    if plan.fits and used < UNUSED * total and (least := smallest_gpu(model, plan)):
        unused = (
            f"{used / GB:.1f} of {total / GB:.0f} GB of GPU memory are used, the rest is paid for "
            f"and stays empty: one GPU of {least} GB would do, or do more at a time: --batch",
        )
    return replace(
        plan,
        name="",
        unused=unused,
        notes=tuple(notes),
        phases=tuple(plans),
        ways_out=tuple(sorted(ways, key=lambda way: not way.fits)),
    )
