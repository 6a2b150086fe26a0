"""The bytes of one model in one use, which weights go where, and how fast that will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.planning.config import compute_bytes, family_of, is_gated
from lightning_hangcheck.planning.plan import GB, Share
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from lightning_hangcheck.planning.config import Fields, Weights
    from lightning_hangcheck.planning.plan import Machine, SpeedClass, Use

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
    devices = [*((str(number), memory) for number, memory in enumerate(machine.gpus))]
    devices += [("cpu", machine.cpu), ("disk", 0)]
    for index, (name, memory) in enumerate(devices):
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
    disk = weights.get("disk", 0) / DISK
    if "0" not in weights:
        return weights.get("cpu", 0) / MAIN_MEMORY + disk
    return weights.get("cpu", 0) / BUS + disk


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
