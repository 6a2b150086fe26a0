"""How model families differ in what their layers hold; all else follows from sizes."""

from __future__ import annotations

from msgspec import Struct


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
