"""The bytes of one model in one use, with which placing works.

Beside the weights these are the activations, numbers in flight while one layer runs, and the KV
cache, keys and values of the tokens so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.planning.from_config.counting import family_of
from lightning_hangcheck.planning.from_config.weights import compute_bytes

if TYPE_CHECKING:
    from lightning_hangcheck.planning.from_config.config import Fields
    from lightning_hangcheck.planning.from_config.weights import Weights
    from lightning_hangcheck.planning.plan import Use

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
        cache: Keys and values of all layers.
        activations: In flight while one layer runs.
        extras: Of the modules beside the model on the first GPU.
        extras_on_cpu: Of those in main memory.
        quantized: The weights are loaded in 8 or 4 bits.
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

    Args:
        fields: Sizes of the model.
        context: Tokens of prompt and answer together.
        batch: Sequences at a time.
        number_bytes: Bytes of one number.
    """
    queries = fields.heads * fields.head_dim
    keys_and_values = 2 * fields.kv_heads * fields.head_dim
    stages = (
        number_bytes * (3 * queries + 2 * keys_and_values),
        number_bytes * _feed_forward(fields),
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

    Args:
        fields: Sizes of the model.
        context: Tokens of prompt and answer together.
        batch: Sequences at a time.
        number_bytes: Bytes of one number.

    Returns:
        One figure a layer (of the decoder, where there is an encoder too); all 0 for a model that
        does not make text token by token.
    """
    family = family_of(fields)
    if fields.two_stacks:
        # the decoder's own tokens, and the encoder's once more: the context may be either's
        layer = 2 * _token(fields) * batch * context * number_bytes
        return (layer,) * (fields.decoder_layers or fields.layers)
    if not family.generates:
        return (0,) * fields.layers
    return tuple(
        _token(fields) * batch * _tokens(fields, index, context) * number_bytes
        for index in range(fields.layers)
    )


def _feed_forward(fields: Fields) -> int:
    """Numbers of one token that live at once in the feed-forward network."""
    gated = family_of(fields).gated if fields.gated is None else fields.gated
    wide = WRITTEN_OUT if fields.written_out else 3 if gated else 2
    if not fields.experts:
        return wide * fields.intermediate
    return max(1, fields.experts_per_token) * (wide * fields.intermediate + ROUTED * fields.hidden)


def _token(fields: Fields) -> int:
    """Numbers that a layer keeps for one token."""
    if fields.latent:
        return fields.latent + fields.latent_position
    return 2 * fields.kv_heads * fields.head_dim


def _tokens(fields: Fields, layer: int, context: int) -> int:
    kind = fields.kinds[layer] if layer < len(fields.kinds) else ""
    if kind in WITHOUT:
        return 0
    everywhere = not fields.kinds and fields.model_type in WINDOW_IN_ALL_LAYERS
    if fields.window and (kind in WINDOWED or everywhere):
        return min(context, max(1, fields.window - 1))
    return context
