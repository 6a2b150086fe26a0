"""What a model's config.json says: its sizes under all their names, and its weights counted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import BadUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

Dtype = Literal["float32", "bfloat16", "float16", "int8", "int4"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)
Sureness = Literal["counted", "computed", "guessed"]
QUANTIZED: tuple[Dtype, ...] = ("int8", "int4")
_BYTES: dict[Dtype, float] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int8": 1,
    # bitsandbytes packs two weights in a byte, and keeps a float32 scale for each 64 of them
    # (bitsandbytes/functional.py, quantize_4bit: blocksize 64)
    "int4": 0.5 + 4 / 64,
}


class Piece(Struct, frozen=True):
    """A part of the model that stays on one device.

    Attributes:
        linear: Those in linear layers, which 8-bit and 4-bit loading shrinks. bitsandbytes
            replaces ``nn.Linear`` and ``Conv1D`` only (transformers/integrations/bitsandbytes.py):
            not embeddings, norms, the head, or experts that are kept in one tensor.
    """

    parameters: int
    linear: int = 0

    def bytes_in(self, dtype: Dtype) -> int:
        """Bytes of these weights; what is not quantized stays in 16 bits."""
        linear = self.linear if dtype in QUANTIZED else 0
        return round((self.parameters - linear) * compute_bytes(dtype) + linear * _BYTES[dtype])


class Weights(Struct, frozen=True, kw_only=True):
    """The weights in the order in which a model runs.

    Attributes:
        before: Embeddings, with the head where it shares their weights.
        blocks: The layers, of which none is ever split between devices.
        sureness: ``counted``: on the real model without its data. ``computed``: by formulas that
            are exact for this family. ``guessed``: by those of a family like it.
    """

    before: Piece
    blocks: tuple[Piece, ...]
    after: Piece
    sureness: Sureness
    source: str

    @property
    def parameters(self) -> int:
        """All of them."""
        return sum(piece.parameters for piece in (self.before, *self.blocks, self.after))

    def bytes_in(self, dtype: Dtype) -> int:
        """Bytes of all of them in this number format."""
        return sum(piece.bytes_in(dtype) for piece in (self.before, *self.blocks, self.after))


def compute_bytes(dtype: Dtype) -> int:
    """Bytes of one number in activations and cache: quantized weights compute in 16 bits."""
    return 4 if dtype == "float32" else 2


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
            f"{path} is not JSON ({error})", f"fetch the model's {CONFIG_NAME} once more"
        ) from error
    if not isinstance(content, dict):
        raise BadUsage(f"{path} holds no JSON object", f"fetch the model's {CONFIG_NAME} once more")
    return content


class Fields(Struct, frozen=True, kw_only=True):
    """The sizes of a model.

    Attributes:
        model_type: As transformers names the family; empty if config.json does not say.
        intermediate: Width of the feed-forward network; of one expert where there are experts.
        positions: Longest context that it was made for, 0 if unknown.
        window: Tokens that a sliding-window layer keeps, None where all layers keep all.
        kinds: Kind of each layer (``full_attention``, ``sliding_attention``, ...), where told.
        latent: Width of the compressed keys and values of multi-head latent attention, 0 if none.
        two_stacks: An encoder, and a decoder that also attends to it.
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
    acts = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
    kinds = text.get("layer_types")
    plain = {name: size or 0 for name, size in sizes.items() if name not in ("window", "of_expert")}
    return Fields(
        model_type=model_type,
        window=sizes["window"],
        kinds=tuple(map(str, kinds)) if isinstance(kinds, list) else (),
        two_stacks=bool(_flag(config, "is_encoder_decoder")),
        tied=_flag(text, "tie_word_embeddings"),
        gated=True if str(text.get("feed_forward_proj", "")).startswith("gated") else None,
        written_out=next((text[name] for name in acts if text.get(name)), "") in WRITTEN_OUT,
        attention_bias=_flag(text, "attention_bias"),
        **plain,
    )


def stored_dtype(config: Mapping[str, object]) -> tuple[Dtype, str]:
    """Return the format that from_pretrained would take, and where that comes from.

    Without a word in config.json it is float32, which is what transformers takes then.
    """
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict):
        why = "the checkpoint is quantized, says config.json"
        method, bits = quantization.get("quant_method"), quantization.get("bits")
        if bits == 8 or method in _EIGHT_BITS or quantization.get("load_in_8bit"):
            return "int8", why
        if bits == 4 or method in _FOUR_BITS or quantization.get("load_in_4bit"):
            return "int4", why
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
                f"config.json has {name}={value!r}, which is not a whole number from 0 to {most:,}",
                "correct it, or fetch the model's config.json once more",
            )
        return int(str(value))
    return None


def _flag(config: Mapping[str, object], name: str) -> bool | None:
    value = config.get(name)
    return value if isinstance(value, bool) else None


class Family(Struct, frozen=True, kw_only=True):
    """What the layers of a family of models hold. Sources: transformers/models/<family>/modeling_*.

    Attributes:
        gated: The feed-forward network has three matrices (gate, up, down), not two.
        qkv_bias: Projections to queries, keys and values have a bias.
        layer_norm: Norms have a scale and a shift, not a scale alone.
        pooler: A square layer with bias stands behind the last layer.
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
_BERT = replace(
    _GPT2,
    tied=False,
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


def is_gated(fields: Fields) -> bool:
    """Whether the feed-forward network has a gate."""
    return family_of(fields).gated if fields.gated is None else fields.gated


def count_weights(fields: Fields) -> Weights:
    """Count all weights from the sizes in config.json."""
    family, hidden = family_of(fields), fields.hidden
    known = fields.model_type in FAMILIES
    name = fields.model_type or "unnamed"
    norm = hidden * (2 if family.layer_norm else 1)
    rows = fields.vocabulary + fields.token_types
    rows += fields.positions if family.learned_positions else 0
    tied = family.tied if fields.tied is None else fields.tied
    after = norm * (2 if fields.two_stacks else 1) if family.final_norm else 0
    after += fields.vocabulary * hidden if family.head and not tied else 0
    after += hidden * (hidden + 1) if family.pooler else 0
    return Weights(
        before=Piece(rows * hidden + (norm if family.embedding_norm else 0)),
        blocks=_blocks(fields, family, norm),
        after=Piece(after, linear=hidden**2 if family.pooler else 0),
        sureness="computed" if known else "guessed",
        source=f"formulas for {name} models" if known else f"formulas for Llama, not for {name}",
    )


def _blocks(fields: Fields, family: Family, norm: int) -> tuple[Piece, ...]:
    """All layers; of two stacks the encoder's, then the decoder's with a second attention."""
    hidden, wide = fields.hidden, fields.intermediate
    queries, keys_and_values = fields.heads * fields.head_dim, 2 * fields.kv_heads * fields.head_dim
    attention = hidden * (2 * queries + keys_and_values)
    feed = (3 if is_gated(fields) else 2) * hidden * wide  # of one expert, where there are experts
    if fields.two_stacks:
        encoder = Piece(attention + feed + 2 * norm, attention + feed)
        decoder = Piece(2 * attention + feed + 3 * norm, 2 * attention + feed)
        # the first of each holds the table of relative positions, if there is one (modeling_t5.py)
        table = 32 * fields.heads if family.relative_positions else 0
        firsts = [Piece(one.parameters + table, one.linear) for one in (encoder, decoder)]
        decoders = (fields.decoder_layers or fields.layers) - 1
        return (firsts[0], *[encoder] * (fields.layers - 1), firsts[1], *[decoder] * decoders)
    everywhere = family.biases or bool(fields.attention_bias)
    biases = queries + keys_and_values if family.qkv_bias or everywhere else 0
    biases += hidden if everywhere else 0
    experts = max(1, fields.experts)
    with_biases = feed + (wide + hidden if family.biases else 0)
    others = biases + hidden * fields.experts + 2 * norm  # with the router
    linear = attention + (0 if family.fused_experts and fields.experts else feed * experts)
    return (Piece(attention + with_biases * experts + others, linear),) * fields.layers
