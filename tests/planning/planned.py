"""Builds models and machines to plan with, in one line each."""

from __future__ import annotations

from lightning_hangcheck.planning.config import read_fields
from lightning_hangcheck.planning.plan import GB, Extra, Machine, Model, Piece, Use

LLAMA_8B: dict[str, object] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "max_position_embeddings": 131072,
}
"""Sizes as published with Llama 3.1 8B."""
PUBLISHED_PARAMETERS = 8_030_261_248
"""Of Llama 3.1 8B, as its safetensors index and the hub give them."""


def model(**changes: object) -> Model:
    """Llama 3.1 8B: its embeddings, 32 layers of two norms and linear weights, norm and head."""
    linear, norm, table = 218_103_808, 4096, 128256 * 4096
    layers = (Piece(linear + 2 * norm, linear),) * 32
    pieces = (Piece(table), *layers, Piece(norm + table))
    return Model("llama-8b", read_fields({**LLAMA_8B, **changes}), pieces, "paper")


def machine(*gpu_gb: float, cpu_gb: float = 64) -> Machine:
    return Machine(gpus=tuple(int(size * GB) for size in gpu_gb), cpu=int(cpu_gb * GB))


def use(dtype: str = "bfloat16", context: int = 4096, batch: int = 1, operators_gb: int = 0) -> Use:
    extras = (Extra("operators", operators_gb * GB),) if operators_gb else ()
    return Use(dtype=dtype, context=context, batch=batch, extras=extras)  # type: ignore[arg-type]
