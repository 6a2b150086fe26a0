"""What a plan needs of a model's config.json: found, read, and understood under all its names.

Families name their sizes differently; `Fields` has one name for each. The number format in which
the weights are stored is told here too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.from_config.weights import DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.planning.from_config.weights import Dtype

# by the field of `Fields`: the names that configurations of transformers use, newest first
_NAMES: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads"),
    "vocabulary": ("vocab_size",),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim", "d_kv"),
    "intermediate": ("intermediate_size", "n_inner", "d_ff", "ffn_dim", "encoder_ffn_dim"),
    "positions": ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
    "decoder_layers": ("num_decoder_layers", "decoder_layers"),
    "token_types": ("type_vocab_size",),
    "of_expert": ("moe_intermediate_size",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "top_k"),
    "window": ("sliding_window",),
    "latent": ("kv_lora_rank",),
    "latent_position": ("qk_rope_head_dim",),
}
_NEEDED = ("hidden", "layers", "heads", "vocabulary")
WRITTEN_OUT = ("gelu_new", "gelu_fast", "gelu_accurate", "quick_gelu")
"""Activations that transformers computes term by term (transformers/activations.py)."""
LARGEST_SIZES = {"layers": 1_000, "decoder_layers": 1_000, "experts": 10_000, "hidden": 1_000_000}
"""Beyond these it is no model but a slip; the largest known have 128 layers and 512 experts."""
LARGEST_SIZE = 10**9
CONFIG_NAME = "config.json"
LONGEST_CONFIG = 16 * 1024 * 1024
"""Bytes; config.json is a few kilobytes, so a weights file given by mistake is told at once."""
_EIGHT_BITS = ("fp8", "fbgemm_fp8", "finegrained_fp8")
_FOUR_BITS = ("mxfp4", "awq", "gptq")


def find_config(model: str) -> Path | None:
    """Return the config.json that is meant, None where there is no such file or folder.

    Args:
        model: A folder that holds it, or the file itself.

    Raises:
        BadUsage: The folder is there, and has no config.json.
    """
    path = Path(model).expanduser()
    if not path.is_dir():
        return path if path.exists() else None
    if not (path / CONFIG_NAME).exists():
        raise BadUsage(
            f"the folder {model} has no {CONFIG_NAME}",
            "name the folder that from_pretrained gets, which holds config.json and the weights",
        )
    return path / CONFIG_NAME


def read_config(path: Path) -> Mapping[str, object]:
    """Read a model's configuration.

    Raises:
        BadUsage: It cannot be read, or is no JSON object.
    """
    try:
        if not path.is_file() or path.stat().st_size > LONGEST_CONFIG:
            raise BadUsage(
                f"{path} is no {CONFIG_NAME}", f"name a model's folder or its {CONFIG_NAME}"
            )
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise BadUsage(
            f"{path} cannot be read ({error.strerror})", f"name a {CONFIG_NAME} that you may read"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadUsage(
            f"{path} is no JSON ({error})", f"fetch the model's {CONFIG_NAME} once more"
        ) from error
    if not isinstance(content, dict):
        raise BadUsage(f"{path} holds no JSON object", f"fetch the model's {CONFIG_NAME} once more")
    return content


class Fields(Struct, frozen=True, kw_only=True):
    """The sizes of a model.

    Attributes:
        model_type: As transformers names the family; empty if config.json does not say.
        head_dim: Width of one attention head.
        intermediate: Width of the feed-forward network; of one expert where there are experts.
        positions: Longest context that it was made for, 0 if unknown.
        window: Tokens that a sliding-window layer keeps, None where all layers keep all.
        kinds: Kind of each layer (``full_attention``, ``sliding_attention``, ...), where told.
        latent: Width of the compressed keys and values of multi-head latent attention, 0 if none.
        two_stacks: An encoder, and a decoder that also attends to it.
        tied: The head shares the embedding's weights; None if config.json does not say.
        gated: The feed-forward network has a gate, where config.json says so.
        written_out: The activation is computed term by term, which takes more memory.
        attention_bias: Attention's projections have a bias, where config.json says so.
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
    token_types: int = 0
    experts: int = 0
    experts_per_token: int = 0
    window: int | None = None
    kinds: tuple[str, ...] = ()
    latent: int = 0
    latent_position: int = 0
    two_stacks: bool = False
    tied: bool | None = None
    gated: bool | None = None
    written_out: bool = False
    attention_bias: bool | None = None


def read_fields(config: Mapping[str, object]) -> Fields:
    """Take the sizes from a configuration; of a model with several parts, its text part.

    Raises:
        BadUsage: A size is missing, or is no positive whole number.
    """
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    model_type = str(text.get("model_type") or "")
    sizes = {field: _number(text, field, names) for field, names in _NAMES.items()}
    missing = [_NAMES[field][0] for field in _NEEDED if not sizes[field]]
    if missing:
        kind = f"its model_type is {model_type!r}" if model_type else "it has no model_type"
        raise BadUsage(
            f"config.json has no {' and no '.join(missing)} ({kind})",
            "plan a text model whose config.json gives its sizes",
        )
    heads, hidden = sizes["heads"] or 1, sizes["hidden"] or 0
    one_for_all = bool(text.get("multi_query")) and not text.get("new_decoder_architecture")
    sizes["kv_heads"] = 1 if one_for_all else sizes["kv_heads"] or heads
    sizes["head_dim"] = sizes["head_dim"] or max(1, hidden // heads)
    of_expert = sizes["of_expert"] if sizes["experts"] else None
    sizes["intermediate"] = of_expert or sizes["intermediate"] or 4 * hidden
    if text.get("use_sliding_window") is False:
        sizes["window"] = None
    plain = {name: size or 0 for name, size in sizes.items() if name not in ("window", "of_expert")}
    return Fields(
        model_type=model_type,
        window=sizes["window"],
        kinds=_kinds(text.get("layer_types")),
        two_stacks=bool(_flag(config, "is_encoder_decoder")),
        tied=_flag(text, "tie_word_embeddings"),
        gated=True if str(text.get("feed_forward_proj", "")).startswith("gated") else None,
        written_out=_activation(text) in WRITTEN_OUT,
        attention_bias=_flag(text, "attention_bias"),
        **plain,
    )


def stored_dtype(config: Mapping[str, object]) -> tuple[Dtype, str]:
    """Return the format that from_pretrained would take, and where that comes from.

    Without a word in config.json it is float32, which is what transformers takes then.
    """
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        dtype = _quantized(quantization)
        if dtype is not None:
            return dtype, "the checkpoint is quantized, says config.json"
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    stored = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if stored in DTYPES:
        return stored, "says config.json"
    return "float32", "config.json names no number format, so transformers loads float32"


def _number(config: Mapping[str, object], field: str, names: tuple[str, ...]) -> int | None:
    """Read the first of these that is there; null counts as absent."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        most = LARGEST_SIZES.get(field, LARGEST_SIZE)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value <= most:  # type: ignore[operator] # whole: it is an int
            raise BadUsage(
                f"config.json has {name}={value!r}, which is no whole number from 0 to {most:,}",
                "correct it, or fetch the model's config.json once more",
            )
        return int(str(value))
    return None


def _flag(config: Mapping[str, object], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


def _kinds(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _activation(config: Mapping[str, object]) -> object:
    names = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
    return next((config[name] for name in names if config.get(name)), "")


def _quantized(quantization: Mapping[str, object]) -> Dtype | None:
    method, bits = quantization.get("quant_method"), quantization.get("bits")
    if bits == 8 or method in _EIGHT_BITS or quantization.get("load_in_8bit"):
        return "int8"
    if bits == 4 or method in _FOUR_BITS or quantization.get("load_in_4bit"):
        return "int4"
    return None
