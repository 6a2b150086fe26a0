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
        BadUsage: It cannot be read, or is no JSON object.
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


def _text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    inner = config.get("text_config")
    return {**config, **inner} if isinstance(inner, dict) else config


def read_fields(config: Mapping[str, object]) -> Fields:
    """Take the sizes from a configuration; of a model with several parts, its text part.

    Raises:
        BadUsage: A size is missing, or is no positive whole number.
    """
    text = _text_part(config)
    sizes: dict[str, int] = {}
    for field, names in _NAMES.items():
        name = next((one for one in names if text.get(one) is not None), None)
        value, most = text.get(name or ""), LARGEST_SIZES.get(field, LARGEST_SIZE)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if name is not None and not (whole and 0 <= int(str(value)) <= most):
            raise BadUsage(
                f"config.json has {name}={value!r}, which is not a whole number from 0 to {most:,}",
                "correct it, or fetch the model's config.json once more",
            )
        sizes[field] = int(str(value or 0))
    model_type = str(text.get("model_type") or "")
    missing = [_NAMES[field][0] for field in _NEEDED if not sizes[field]]
    if missing:
        kind = f"its model_type is {model_type!r}" if model_type else "it has no model_type"
        raise BadUsage(
            f"config.json has no {' and no '.join(missing)} ({kind})",
            "plan a text model whose config.json gives its sizes",
        )

    def flag(name: str) -> bool | None:
        value = text.get(name)
        return value if isinstance(value, bool) else None

    of_expert, window = sizes.pop("of_expert"), sizes.pop("window")
    one_for_all = bool(text.get("multi_query")) and not text.get("new_decoder_architecture")
    sizes["kv_heads"] = 1 if one_for_all else sizes["kv_heads"] or sizes["heads"]
    sizes["head_dim"] = sizes["head_dim"] or max(1, sizes["hidden"] // sizes["heads"])
    of_expert = of_expert if sizes["experts"] else 0
    sizes["intermediate"] = of_expert or sizes["intermediate"] or 4 * sizes["hidden"]
    acts = ("hidden_act", "activation_function", "hidden_activation", "dense_act_fn")
    kinds = text.get("layer_types")
    return Fields(
        model_type=model_type,
        window=(window or None) if flag("use_sliding_window") is not False else None,
        kinds=tuple(map(str, kinds)) if isinstance(kinds, list) else (),
        two_stacks=config.get("is_encoder_decoder") is True,
        tied=flag("tie_word_embeddings"),
        gated=True if str(text.get("feed_forward_proj", "")).startswith("gated") else None,
        written_out=next((text[name] for name in acts if text.get(name)), "") in WRITTEN_OUT,
        attention_bias=flag("attention_bias"),
        **sizes,
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
    text = _text_part(config)
    stored = str(text.get("dtype") or text.get("torch_dtype") or "").removeprefix("torch.")
    if stored in DTYPES:
        return stored, "says config.json"
    return "float32", "config.json names no number format, so transformers loads float32"


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


_GPT2 = Family(
    gated=False, qkv_bias=True, biases=True, layer_norm=True, learned_positions=True, tied=True
)
FAMILIES: dict[str, Family] = {
    "bert": replace(
        _GPT2,
        tied=False,
        final_norm=False,
        embedding_norm=True,
        pooler=True,
        head=False,
        generates=False,
    ),
    "gpt2": _GPT2,
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(fused_experts=True),
    "qwen2": Family(qkv_bias=True),
    "t5": Family(gated=False, tied=True, relative_positions=True),
}


def family_of(fields: Fields) -> Family:
    """Return the family; that of Llama, as which most are built since 2023, of an unknown one."""
    return FAMILIES.get(fields.model_type, FAMILIES["llama"])


def is_gated(fields: Fields) -> bool:
    """Whether the feed-forward network has a gate."""
    return family_of(fields).gated if fields.gated is None else fields.gated


def count_weights(fields: Fields) -> Weights:
    """Count all weights from the sizes in config.json."""
    family, hidden, wide = family_of(fields), fields.hidden, fields.intermediate
    norm = hidden * (2 if family.layer_norm else 1)
    queries, keys_and_values = fields.heads * fields.head_dim, 2 * fields.kv_heads * fields.head_dim
    attention = hidden * (2 * queries + keys_and_values)
    feed = (3 if is_gated(fields) else 2) * hidden * wide  # of one expert, where there are experts
    if fields.two_stacks:  # the encoder's layers, then the decoder's with a second attention
        encoder = Piece(attention + feed + 2 * norm, attention + feed)
        decoder = Piece(2 * attention + feed + 3 * norm, 2 * attention + feed)
        # the first of each holds the table of relative positions, if there is one (modeling_t5.py)
        table = 32 * fields.heads if family.relative_positions else 0
        firsts = [Piece(piece.parameters + table, piece.linear) for piece in (encoder, decoder)]
        decoders = (fields.decoder_layers or fields.layers) - 1
        encoders = [firsts[0], *[encoder] * (fields.layers - 1)]
        blocks = (*encoders, firsts[1], *[decoder] * decoders)
    else:
        everywhere = family.biases or bool(fields.attention_bias)
        biases = queries + keys_and_values if family.qkv_bias or everywhere else 0
        biases += hidden if everywhere else 0
        experts = max(1, fields.experts)
        with_biases = feed + (wide + hidden if family.biases else 0)
        others = biases + hidden * fields.experts + 2 * norm  # with the router
        linear = attention + (0 if family.fused_experts and fields.experts else feed * experts)
        blocks = (Piece(attention + with_biases * experts + others, linear),) * fields.layers
    rows = fields.vocabulary + fields.token_types
    rows += fields.positions if family.learned_positions else 0
    tied = family.tied if fields.tied is None else fields.tied
    after = norm * (2 if fields.two_stacks else 1) if family.final_norm else 0
    after += fields.vocabulary * hidden if family.head and not tied else 0
    after += hidden * (hidden + 1) if family.pooler else 0
    known, name = fields.model_type in FAMILIES, fields.model_type or "unnamed"
    return Weights(
        before=Piece(rows * hidden + (norm if family.embedding_norm else 0)),
        blocks=blocks,
        after=Piece(after, linear=hidden**2 if family.pooler else 0),
        sureness="computed" if known else "guessed",
        source=f"formulas for {name} models" if known else f"formulas for Llama, not for {name}",
    )
