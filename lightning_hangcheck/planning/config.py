"""Reads a model's config.json: its sizes under all their names, and the count of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from msgspec import Struct

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

Dtype = Literal["float32", "bfloat16", "float16", "int8", "int4"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Sureness = Literal["counted", "computed", "guessed"]
# bitsandbytes packs two 4-bit weights into a byte, with a float32 scale per 64 weights
# (bitsandbytes/functional.py, quantize_4bit: blocksize 64)
QUANTIZED: dict[Dtype, float] = {"int8": 1, "int4": 0.5 + 4 / 64}  # Bytes per weight.


def compute_bytes(dtype: Dtype) -> int:
    """Bytes per number in activations and cache; quantized weights compute in 16 bits."""
    return 4 if dtype == "float32" else 2


class Piece(Struct, frozen=True):
    """A part of the model that stays on one device.

    Attributes:
        linear: Parameters that 8-bit and 4-bit loading shrinks. bitsandbytes replaces only
            ``nn.Linear`` and ``Conv1D`` (transformers/integrations/bitsandbytes.py): not
            embeddings, norms, the head, or experts stored in one tensor.
    """

    parameters: int
    linear: int = 0

    def bytes_in(self, dtype: Dtype) -> int:
        """Bytes of these weights; what is not quantized stays in 16 bits."""
        linear = self.linear if dtype in QUANTIZED else 0
        quantized = linear * QUANTIZED.get(dtype, 0)
        return round((self.parameters - linear) * compute_bytes(dtype) + quantized)


class Weights(Struct, frozen=True, kw_only=True):
    """The weights, in the order in which the model runs.

    Attributes:
        pieces: Embeddings (with the head if it shares their weights), each layer, norm and head.
        sureness: ``counted``: on the real model without its data. ``computed``: by formulas that
            are exact for this family. ``guessed``: by the formulas of a similar family.
    """

    pieces: tuple[Piece, ...]
    sureness: Sureness
    source: str

    @property
    def parameters(self) -> int:
        """Number of all parameters."""
        return sum(piece.parameters for piece in self.pieces)


# by field of `Fields`: names in configurations of transformers, newest first
NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "intermediate": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
    "of_expert": ("moe_intermediate_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "top_k"),
    "window": ("sliding_window",),
    "latent": ("kv_lora_rank",),
    "latent_position": ("qk_rope_head_dim",),
}
NEEDED = ("hidden", "layers", "heads", "vocabulary")
ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
WRITTEN_OUT = ("gelu_new", "gelu_fast", "gelu_accurate", "quick_gelu")
"""Activations that transformers computes term by term (transformers/activations.py)."""
LARGEST_SIZES = {"layers": 1_000, "decoder_layers": 1_000, "experts": 10_000, "hidden": 1_000_000}
"""Larger values are mistakes; the largest known models have 128 layers and 512 experts."""
LARGEST_SIZE = 10**9
CONFIG_NAME = "config.json"
LONGEST_CONFIG = 16 * 1024 * 1024
"""Bytes; config.json has a few kilobytes, so a weights file is refused at once."""


def find_config(model: str) -> Path | None:
    """Return the path of config.json; None if there is no such file or folder.

    Raises:
        BadUsage: The folder exists, but has no config.json.
    """
    path = Path(model).expanduser()
    found = path / CONFIG_NAME if path.is_dir() else path
    if found.exists():
        return found
    if found is path:
        return None
    raise BadUsage(
        f"the folder {model} has no {CONFIG_NAME}",
        "name the folder that from_pretrained gets, which holds config.json and the weights",
    )


def read_config(path: Path) -> Mapping[str, object]:
    """Read a model's configuration.

    Raises:
        BadUsage: The file cannot be read, or is no JSON object.
    """
    again = f"fetch the model's {CONFIG_NAME} once more"
    try:
        if not path.is_file() or path.stat().st_size > LONGEST_CONFIG:
            way_out = f"name a model's folder or its {CONFIG_NAME}"
            raise BadUsage(f"{path} is no {CONFIG_NAME}", way_out)
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        why = f"{path} cannot be read ({error.strerror})"
        raise BadUsage(why, f"name a {CONFIG_NAME} that you may read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadUsage(f"{path} is not JSON ({error})", again) from error
    if not isinstance(content, dict):
        raise BadUsage(f"{path} holds no JSON object", again)
    return content


class Fields(Struct, frozen=True, kw_only=True):
    """The sizes of a model.

    Attributes:
        model_type: Family name as in transformers; empty if config.json has none.
        intermediate: Width of the feed-forward network, or of one expert.
        positions: Longest context that the model was made for; 0 if unknown.
        window: Tokens that a sliding-window layer keeps; None if all layers keep all.
        kinds: Kind of each layer (``full_attention``, ``sliding_attention``, ...), if given.
        latent: Width of the compressed keys and values of multi-head latent attention; 0 if none.
        two_stacks: An encoder, and a decoder that also attends to it.
        relative_positions: Layers have a table of relative positions, heads x context x context.
        written_out: The activation is computed term by term, which takes more memory.
    """

    model_type: str
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    kv_heads: int
    head_dim: int
    intermediate: int
    positions: int = 0
    decoder_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    window: int | None = None
    kinds: tuple[str, ...] = ()
    latent: int = 0
    latent_position: int = 0
    two_stacks: bool = False
    relative_positions: bool = False
    tied: bool | None = None
    gated: bool | None = None
    written_out: bool = False
    attention_bias: bool = False

    @property
    def family(self) -> Family:
        """The family; if unknown Llama's, which most models since 2023 resemble."""
        return FAMILIES.get(self.model_type, FAMILIES["llama"])

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward network has three matrices (gate, up, down), not two."""
        return self.family.gated if self.gated is None else self.gated


def _text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def read_fields(config: Mapping[str, object]) -> Fields:
    """Read the sizes from a configuration; of a multi-part model, from its text part.

    Raises:
        BadUsage: A size is missing, or is no positive whole number.
    """
    text = _text_part(config)
    sizes: dict[str, int] = {}
    for field, names in NAMES.items():
        name = next((key for key in names if text.get(key) is not None), None)
        value, most = text.get(name or ""), LARGEST_SIZES.get(field, LARGEST_SIZE)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name is not None and not (whole and 0 <= int(str(value)) <= most):
            raise BadUsage(
                f"config.json has {name}={value!r}, which is not a whole number from 0 to {most:,}",
                "correct it, or fetch the model's config.json once more",
            )
        sizes[field] = int(str(value or 0))
    model_type = str(text.get("model_type") or "")
    if missing := [NAMES[field][0] for field in NEEDED if not sizes[field]]:
        kind = f"its model_type is {model_type!r}" if model_type else "it has no model_type"
        raise BadUsage(
            f"config.json has no {' and no '.join(missing)} ({kind})",
            "plan a text model whose config.json gives its sizes",
        )
    of_expert, window = sizes.pop("of_expert"), sizes.pop("window")
    one_for_all = bool(text.get("multi_query")) and not text.get("new_decoder_architecture")
    sizes["kv_heads"] = 1 if one_for_all else sizes["kv_heads"] or sizes["heads"]
    sizes["head_dim"] = sizes["head_dim"] or max(1, sizes["hidden"] // sizes["heads"])
    of_expert = of_expert if sizes["experts"] else 0
    sizes["intermediate"] = of_expert or sizes["intermediate"] or 4 * sizes["hidden"]
    kinds, tied = text.get("layer_types"), text.get("tie_word_embeddings")
    return Fields(
        model_type=model_type,
        window=(window or None) if text.get("use_sliding_window") is not False else None,
        kinds=tuple(map(str, kinds)) if isinstance(kinds, list) else (),
        two_stacks=config.get("is_encoder_decoder") is True,
        relative_positions="relative_attention_num_buckets" in text,
        tied=tied if isinstance(tied, bool) else None,
        gated=True if str(text.get("feed_forward_proj", "")).startswith("gated") else None,
        written_out=next((text[key] for key in ACTIVATIONS if text.get(key)), "") in WRITTEN_OUT,
        attention_bias=text.get("attention_bias") is True,
        **sizes,
    )


def stored_dtype(config: Mapping[str, object]) -> tuple[Dtype, str]:
    """Return the format that from_pretrained would use, by default float32, and its source."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        why = "the checkpoint is quantized, says config.json"
        method, bits = quantization.get("quant_method"), quantization.get("bits")
        of_8_bits = method in ("fp8", "fbgemm_fp8", "finegrained_fp8")
        if bits == 8 or of_8_bits or quantization.get("load_in_8bit"):
            return "int8", why
        if bits == 4 or method in ("mxfp4", "awq", "gptq") or quantization.get("load_in_4bit"):
            return "int4", why
    text = _text_part(config)
    stored = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if stored in DTYPES:
        return stored, "says config.json"
    return "float32", "config.json names no number format, so transformers loads float32"


class Family(Struct, frozen=True, kw_only=True):
    """Layer structure of a model family. Sources: transformers/models/<family>/modeling_*.

    Attributes:
        qkv_bias: Projections to queries, keys and values have a bias.
        as_gpt2: Every layer and norm has a bias, positions are learned, and the head is the
            embedding unless config.json says otherwise.
        fused_experts: All experts are one tensor, which 8-bit loading does not shrink.
    """

    gated: bool = True
    qkv_bias: bool = False
    as_gpt2: bool = False
    fused_experts: bool = False


FAMILIES = {
    "gpt2": Family(gated=False, qkv_bias=True, as_gpt2=True),
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(fused_experts=True),
    "qwen2": Family(qkv_bias=True),
}


def count_weights(fields: Fields) -> Weights:
    """Count all weights from the sizes in config.json."""
    family, hidden, wide = fields.family, fields.hidden, fields.intermediate
    norm = hidden * (2 if family.as_gpt2 else 1)
    queries, keys_and_values = fields.heads * fields.head_dim, 2 * fields.kv_heads * fields.head_dim
    attention = hidden * (2 * queries + keys_and_values)
    feed = (3 if fields.is_gated else 2) * hidden * wide  # of one expert, if any
    everywhere = family.as_gpt2 or fields.attention_bias
    biases = queries + keys_and_values if family.qkv_bias or everywhere else 0
    biases += hidden if everywhere else 0
    experts = max(1, fields.experts)
    with_biases = feed + (wide + hidden if family.as_gpt2 else 0)
    others = biases + hidden * fields.experts + 2 * norm  # with the router
    linear = attention + (0 if family.fused_experts and fields.experts else feed * experts)
    layer = Piece(attention + with_biases * experts + others, linear)
    layers = [layer] * fields.layers
    if fields.two_stacks:  # each decoder layer has a second attention
        second = Piece(layer.parameters + attention + norm, layer.linear + attention)
        layers += [second] * (fields.decoder_layers or fields.layers)
    rows = fields.vocabulary + (fields.positions if family.as_gpt2 else 0)
    tied = family.as_gpt2 if fields.tied is None else fields.tied
    head = 0 if tied else fields.vocabulary * hidden
    known, name = fields.model_type in FAMILIES, fields.model_type or "unnamed"
    return Weights(
        pieces=(Piece(rows * hidden), *layers, Piece(norm + head)),
        sureness="computed" if known else "guessed",
        source=f"formulas for {name} models" if known else f"formulas for Llama, not for {name}",
    )
