"""Reads a model's config.json: its sizes under all their names."""

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
WINDOWED = ("sliding_attention", "chunked_attention")
WITHOUT = ("linear_attention", "conv", "mamba")
"""Layers whose state does not grow with the context; being small, it is not counted."""
WINDOW_IN_ALL_LAYERS = ("mistral", "mixtral", "starcoder2", "phi3")
"""Families that apply a window to every layer and name no kinds of layers."""
ENCODERS = ("albert", "bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta")
"""Families that do not generate text token by token, and so keep no cache."""
MOST_LAYERS, LARGEST_SIZE = 1_000, 10**9  # Larger values are mistakes; known models have 128 layers
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
        kept: Tokens that each layer keeps in its cache at most; none if the model keeps no cache.
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
    experts: int = 0
    experts_per_token: int = 0
    kept: tuple[int, ...] = ()
    latent: int = 0
    latent_position: int = 0
    two_stacks: bool = False
    relative_positions: bool = False
    written_out: bool = False


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
        name, value = next(((n, text[n]) for n in names if text.get(n) is not None), ("", 0))
        most = MOST_LAYERS if field.endswith("layers") else LARGEST_SIZE
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise BadUsage(
                f"config.json has {name}={value!r}, which is not a whole number from 0 to {most:,}",
                "correct it, or fetch the model's config.json once more",
            )
        sizes[field] = value
    model_type = str(text.get("model_type") or "")
    if missing := [NAMES[field][0] for field in NEEDED if not sizes[field]]:
        kind = f"its model_type is {model_type!r}" if model_type else "it has no model_type"
        raise BadUsage(
            f"config.json has no {' and no '.join(missing)} ({kind})",
            "plan a text model whose config.json gives its sizes",
        )
    of_expert, window = sizes.pop("of_expert"), sizes.pop("window")
    layers, decoder_layers = sizes["layers"], sizes.pop("decoder_layers")
    one_for_all = bool(text.get("multi_query")) and not text.get("new_decoder_architecture")
    sizes["kv_heads"] = 1 if one_for_all else sizes["kv_heads"] or sizes["heads"]
    sizes["head_dim"] = sizes["head_dim"] or max(1, sizes["hidden"] // sizes["heads"])
    of_expert = of_expert if sizes["experts"] else 0
    sizes["intermediate"] = of_expert or sizes["intermediate"] or 4 * sizes["hidden"]
    two_stacks = config.get("is_encoder_decoder") is True
    kinds = text.get("layer_types")
    kinds = [str(kind) for kind in kinds] if isinstance(kinds, list) else []
    everywhere = not kinds and model_type in WINDOW_IN_ALL_LAYERS
    kinds += [WINDOWED[0] if everywhere else ""] * (layers - len(kinds))
    if window and text.get("use_sliding_window") is not False:
        # transformers keeps one token less (DynamicSlidingWindowLayer)
        windowed = max(1, window - 1)
    else:
        windowed = LARGEST_SIZE
    by_kind = dict.fromkeys(WITHOUT, 0) | dict.fromkeys(WINDOWED, windowed)
    kept = tuple(by_kind.get(kind, LARGEST_SIZE) for kind in kinds[:layers])
    if two_stacks:
        kept = (LARGEST_SIZE,) * (decoder_layers or layers)
    return Fields(
        model_type=model_type,
        kept=() if model_type in ENCODERS else kept,
        two_stacks=two_stacks,
        relative_positions="relative_attention_num_buckets" in text,
        written_out=next((text[key] for key in ACTIVATIONS if text.get(key)), "") in WRITTEN_OUT,
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
