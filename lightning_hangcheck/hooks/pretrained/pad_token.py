"""The missing pad token: set from the end-of-sequence token, and said."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

_NO_END = (
    "there is neither a pad token nor an end-of-sequence token, so prompts cannot be batched; "
    "tokenizer.add_special_tokens({'pad_token': '<pad>'}), then "
    "model.resize_token_embeddings(len(tokenizer))"
)


def set_on_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Give a tokenizer its end-of-sequence token as pad token, if it has none.

    Returns:
        What was done or is missing, None if nothing was missing.
    """
    if getattr(tokenizer, "pad_token", "unknown") is not None:
        return None
    if tokenizer.eos_token is None:
        return f"WARNING: {_NO_END}"
    tokenizer.pad_token = tokenizer.eos_token
    return (
        f"the tokenizer had no pad token; it is now its end-of-sequence token "
        f"{tokenizer.eos_token!r} (id {tokenizer.pad_token_id})"
    )


def set_on_model(model: PreTrainedModel) -> str | None:
    """Give a model's config and generation config the end-of-sequence id as pad id, if missing.

    Returns:
        What was done, None if nothing was.
    """
    configs = {
        "config": getattr(model, "config", None),
        "generation_config": getattr(model, "generation_config", None),
    }
    done = {where: _fill(config) for where, config in configs.items() if config is not None}
    changed = {where: pad for where, pad in done.items() if pad is not None}
    if not changed:
        return None
    pad = next(iter(changed.values()))
    return f"no pad_token_id on {' and '.join(changed)}; it is now the end-of-sequence id {pad}"


def _fill(config: PreTrainedConfig | GenerationConfig) -> int | None:
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    if getattr(config, "pad_token_id", 0) is not None or not isinstance(end, int):
        return None
    config.pad_token_id = end
    return end
