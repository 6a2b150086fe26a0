"""Counts a model's weights from its sizes, exactly for the families that are listed here.

A block of a transformer holds the projections of attention (queries and output ``hidden x heads *
head_dim``, keys and values ``hidden x kv_heads * head_dim``), the feed-forward network (two or
three matrices ``hidden x intermediate``, once per expert), and its norms: Vaswani et al. 2017,
section 3; Ainslie et al. 2023 for grouped keys and values; Shazeer 2020 for the gate. A `Family`
says in what its layers differ; all else follows from sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.planning.from_config.weights import Piece, Weights

if TYPE_CHECKING:
    from lightning_hangcheck.planning.from_config.config import Fields


class Family(Struct, frozen=True, kw_only=True):
    """What the layers of a family of models hold. Sources: transformers/models/<family>/modeling_*.

    Attributes:
        gated: The feed-forward network has three matrices (gate, up, down), not two.
        qkv_bias: Projections to queries, keys and values have a bias.
        biases: All other projections have one.
        layer_norm: Norms have a scale and a shift, not a scale alone.
        learned_positions: There is a table of positions.
        final_norm: A norm stands behind the last layer.
        embedding_norm: A norm stands behind the embeddings.
        pooler: A square layer with bias stands behind the last layer.
        head: A matrix to the vocabulary stands at the end.
        tied: That matrix is the embedding's, unless config.json says otherwise.
        generates: Makes text token by token, so it keeps a cache.
        relative_positions: The first layer of each stack has a table of 32 buckets for each head.
        fused_experts: Experts are one tensor for all, which 8-bit loading leaves as it is.
    """

    gated: bool = True
    qkv_bias: bool = False
    biases: bool = False
    layer_norm: bool = False
    learned_positions: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    pooler: bool = False
    head: bool = True
    tied: bool = False
    generates: bool = True
    relative_positions: bool = False
    fused_experts: bool = False


_LLAMA = Family()
_GPT2 = Family(
    gated=False, qkv_bias=True, biases=True, layer_norm=True, learned_positions=True, tied=True
)
_BERT = Family(
    gated=False,
    qkv_bias=True,
    biases=True,
    layer_norm=True,
    learned_positions=True,
    final_norm=False,
    embedding_norm=True,
    pooler=True,
    head=False,
    generates=False,
)
FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": Family(fused_experts=True),
    "qwen2": Family(qkv_bias=True),
    "t5": Family(gated=False, tied=True, relative_positions=True),
}
UNKNOWN = _LLAMA
"""Most models since 2023 are built like Llama."""


def family_of(fields: Fields) -> Family:
    """Return the family, or the most likely one where config.json names an unknown one."""
    return FAMILIES.get(fields.model_type, UNKNOWN)


def count_weights(fields: Fields) -> Weights:
    """Count all weights from the sizes in config.json."""
    family = family_of(fields)
    known = fields.model_type in FAMILIES
    name = fields.model_type or "unnamed"
    blocks = _stacks(fields, family) if fields.two_stacks else (_block(fields, family),)
    norm = _norm(fields, family)
    tied = family.tied if fields.tied is None else fields.tied
    head = fields.vocabulary * fields.hidden if family.head and not tied else 0
    pooler = fields.hidden * (fields.hidden + 1) if family.pooler else 0
    finals = norm * (2 if fields.two_stacks else 1) if family.final_norm else 0
    return Weights(
        before=Piece(_embeddings(fields, family)),
        blocks=blocks if fields.two_stacks else blocks * fields.layers,
        after=Piece(finals + head + pooler, linear=pooler and fields.hidden**2),
        sureness="computed" if known else "guessed",
        source=f"formulas for {name} models" if known else f"formulas for Llama, not for {name}",
    )


def _embeddings(fields: Fields, family: Family) -> int:
    rows = fields.vocabulary + fields.token_types
    rows += fields.positions if family.learned_positions else 0
    norm = _norm(fields, family) if family.embedding_norm else 0
    return rows * fields.hidden + norm


def _block(fields: Fields, family: Family) -> Piece:
    attention, attention_bias = _attention(fields, family)
    feed, feed_bias = _feed_forward(fields, family)
    experts = max(1, fields.experts)
    router = fields.hidden * fields.experts
    linear = attention + (0 if family.fused_experts and fields.experts else feed * experts)
    norms = 2 * _norm(fields, family)
    everything = attention + attention_bias + (feed + feed_bias) * experts + router + norms
    return Piece(everything, linear)


def _stacks(fields: Fields, family: Family) -> tuple[Piece, ...]:
    """Encoder blocks, then decoder blocks with a second attention.

    The first of each holds the table of relative positions, where there is one (modeling_t5.py).
    """
    attention, _ = _attention(fields, family)
    feed, _ = _feed_forward(fields, family)
    norm = _norm(fields, family)
    positions = 32 * fields.heads if family.relative_positions else 0
    encoder = Piece(attention + feed + 2 * norm, attention + feed)
    decoder = Piece(2 * attention + feed + 3 * norm, 2 * attention + feed)
    first_encoder = Piece(encoder.parameters + positions, encoder.linear)
    first_decoder = Piece(decoder.parameters + positions, decoder.linear)
    decoders = (fields.decoder_layers or fields.layers) - 1
    return (first_encoder, *[encoder] * (fields.layers - 1), first_decoder, *[decoder] * decoders)


def _attention(fields: Fields, family: Family) -> tuple[int, int]:
    """Weights of the four projections, and of their biases."""
    queries = fields.heads * fields.head_dim
    keys_and_values = 2 * fields.kv_heads * fields.head_dim
    weights = fields.hidden * (2 * queries + keys_and_values)
    everywhere = family.biases or bool(fields.attention_bias)
    bias = queries + keys_and_values if family.qkv_bias or everywhere else 0
    return weights, bias + (fields.hidden if everywhere else 0)


def _feed_forward(fields: Fields, family: Family) -> tuple[int, int]:
    """Weights of one feed-forward network, or of one expert, and of its biases."""
    gated = family.gated if fields.gated is None else fields.gated
    weights = (3 if gated else 2) * fields.hidden * fields.intermediate
    return weights, fields.intermediate + fields.hidden if family.biases else 0


def _norm(fields: Fields, family: Family) -> int:
    return fields.hidden * (2 if family.layer_norm else 1)
