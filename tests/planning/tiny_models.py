"""Tiny real models of several families, from their configurations alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 320
_SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 160,
    "vocab_size": VOCABULARY,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
# model_type: class, arguments of its configuration
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", _GROUPED),
    "mistral": ("MistralForCausalLM", {**_GROUPED, "sliding_window": 32}),
    "qwen2": ("Qwen2ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "mixtral": ("MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4}),
    "gpt2": (
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": VOCABULARY}
        | {"bos_token_id": 0, "eos_token_id": 1},
    ),
    # families whose formulas are not known: counted on the model itself
    "bert": ("BertModel", _SIZES),
    "t5": (
        "T5ForConditionalGeneration",
        {"d_model": 64, "num_layers": 3, "num_heads": 4, "d_kv": 16, "d_ff": 160}
        | {"vocab_size": VOCABULARY},
    ),
    "bart": (
        "BartForConditionalGeneration",
        {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": VOCABULARY}
        | {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        | {"encoder_ffn_dim": 160, "decoder_ffn_dim": 160},
    ),
    "gemma2": ("Gemma2ForCausalLM", {**_GROUPED, "head_dim": 16, "sliding_window": 32}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**_SIZES, "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 16}
        | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
        | {"n_routed_experts": 4, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
        | {"n_group": 1, "topk_group": 1},
    ),
}
KNOWN = ("llama", "mistral", "qwen2", "mixtral", "gpt2")
GENERATING = [family for family in FAMILIES if family != "bert"]


def save_config(family: str, folder: Path, **changes: Any) -> Path:
    """Write a model's folder with nothing but its config.json; return the folder."""
    import transformers

    name, arguments = FAMILIES[family]
    config = getattr(transformers, name).config_class(**{**arguments, **changes})
    config.architectures = [name]
    config.save_pretrained(folder)
    return folder


def real_model(folder: Path, dtype: str) -> Any:
    """Build the model of such a folder with random weights, ready to compute."""
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    return getattr(transformers, config.architectures[0])(config).to(getattr(torch, dtype)).eval()
