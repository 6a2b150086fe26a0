"""Small models and checkpoints on disk, in the formats of safetensors and torch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Shapes = dict[str, tuple[int, ...]]
SMALL: dict[str, object] = {
    "model_type": "qwen2",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 16,
    "vocab_size": 32,
    "tie_word_embeddings": True,
}
LARGE = {**SMALL, "hidden_size": 12, "num_hidden_layers": 3, "intermediate_size": 24}
"""Another size of the same family, as Qwen2.5-1.5B is of 0.5B."""


def tensors_of(config: dict[str, object]) -> Shapes:
    """Some tensors of each layer, by transformers' names."""
    hidden, wide = int(str(config["hidden_size"])), int(str(config["intermediate_size"]))
    shapes: Shapes = {"model.embed_tokens.weight": (int(str(config["vocab_size"])), hidden)}
    for layer in range(int(str(config["num_hidden_layers"]))):
        shapes[f"model.layers.{layer}.self_attn.q_proj.weight"] = (hidden, hidden)
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (wide, hidden)
    return shapes


def write_safetensors(file: Path, shapes: Shapes) -> None:
    """The format itself: length, header, numbers (huggingface.co/docs/safetensors)."""
    header: dict[str, object] = {}
    end = 0
    for name, shape in shapes.items():
        begin, numbers = end, 1
        for side in shape:
            numbers *= side
        end += 4 * numbers
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def write_model(folder: Path, config: dict[str, object], tokens: int | None = None) -> Path:
    """A folder as save_pretrained leaves it."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", tensors_of(config))
    if tokens is not None:
        vocabulary = {"model": {"vocab": {f"t{number}": number for number in range(tokens)}}}
        (folder / "tokenizer.json").write_text(json.dumps(vocabulary))
    return folder
