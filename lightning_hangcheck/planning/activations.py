"""How much memory the numbers in flight take while one layer runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.planning.counting import family_of

if TYPE_CHECKING:
    from lightning_hangcheck.planning.config_fields import Fields

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


def activation_bytes(fields: Fields, context: int, batch: int, number_bytes: int) -> int:
    """Estimate the peak while the whole context is read at once, without gradients.

    One layer is alive at a time. Added to what lives all through it is its largest stage: attention
    with queries, keys and values, a rotated copy, and its output (never the square of scores, which
    ``sdpa`` does not hold); the feed-forward network with its wide vectors; or a norm in float32.
    After the last layer come the logits of one token a sequence, as ``generate`` asks for.

    Measured by following each tensor of small models on CPU, for seven families, contexts of 64 to
    1,500 tokens and two formats, it is right within a factor of 1.5
    (tests/hooks/test_activations.py). ``attn_implementation="eager"`` needs far more, with the
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


def _feed_forward(fields: Fields) -> int:
    """Numbers of one token that live at once in the feed-forward network."""
    gated = family_of(fields).gated if fields.gated is None else fields.gated
    wide = WRITTEN_OUT if fields.written_out else 3 if gated else 2
    if not fields.experts:
        return wide * fields.intermediate
    return max(1, fields.experts_per_token) * (wide * fields.intermediate + ROUTED * fields.hidden)
