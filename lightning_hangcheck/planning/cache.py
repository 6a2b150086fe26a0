"""How much memory the keys and values of the tokens so far take: the KV cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.counting import family_of

if TYPE_CHECKING:
    from lightning_hangcheck.planning.config_fields import Fields

WINDOWED = ("sliding_attention", "chunked_attention")
WITHOUT = ("linear_attention", "conv", "mamba")
"""Layers whose state does not grow with the context; it is small, and counted as nothing."""
WINDOW_IN_ALL_LAYERS = ("mistral", "mixtral", "starcoder2", "phi3")
"""Families that give every layer the window if there is one, and name no kinds of layers."""


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
