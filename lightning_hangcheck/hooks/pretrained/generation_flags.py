"""What a model's own settings do to ``generate``: contradicting flags, and a missing pad token.

Flags that contradict each other are ignored, or make ``generate`` raise. The pad token is set from
the end-of-sequence token, and that is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

# a flag of sampling and the value at which it does nothing; from GenerationConfig.validate
_SAMPLING = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 50,
    "typical_p": 1.0,
    "min_p": None,
    "top_h": None,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
_BEAMS = {"early_stopping": False, "length_penalty": 1.0}
_NO_END = (
    "there is neither a pad token nor an end-of-sequence token, so prompts cannot be batched; "
    "tokenizer.add_special_tokens({'pad_token': '<pad>'}), then "
    "model.resize_token_embeddings(len(tokenizer))"
)


def doubtful_flags(flags: Mapping[str, Any], given: Container[str] | None = None) -> list[str]:
    """Name what is wrong with a set of generation flags, each with the way out.

    Args:
        flags: Those that are set, by name.
        given: Speak only of these; None for all.
    """
    samples = flags.get("do_sample") is True
    beams = flags.get("num_beams") or 1
    found = []
    if not samples:
        found += [
            f"{one} is ignored without do_sample=True; add that, or leave it out"
            for one in _set_among(_SAMPLING, flags, given)
        ]
    elif flags.get("temperature") == 0:
        found.append("temperature=0 with do_sample=True is refused; write do_sample=False")
    if beams == 1:
        found += [
            f"{one} is ignored without num_beams > 1; leave it out"
            for one in _set_among(_BEAMS, flags, given)
        ]
    return found + _lengths(flags) + _returned(flags, samples, beams)


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


def _set_among(
    idle: Mapping[str, Any], flags: Mapping[str, Any], given: Container[str] | None
) -> list[str]:
    return [
        f"{name}={flags[name]}"
        for name, value in idle.items()
        if flags.get(name) not in (None, value) and (given is None or name in given)
    ]


def _lengths(flags: Mapping[str, Any]) -> list[str]:
    found = []
    if flags.get("max_length") is not None and flags.get("max_new_tokens") is not None:
        found.append("max_length is ignored beside max_new_tokens; leave one of them out")
    least, most = flags.get("min_new_tokens"), flags.get("max_new_tokens")
    if least is not None and most is not None and least > most:
        found.append(f"min_new_tokens={least} is above max_new_tokens={most}; raise the latter")
    return found


def _returned(flags: Mapping[str, Any], samples: bool, beams: int) -> list[str]:
    wanted = flags.get("num_return_sequences") or 1
    if wanted == 1 or (samples and beams == 1) or wanted <= beams:
        return []
    return [
        f"num_return_sequences={wanted} is refused with num_beams={beams}; raise num_beams, "
        "or set do_sample=True and no beams"
    ]


def _fill(config: PreTrainedConfig | GenerationConfig) -> int | None:
    end = getattr(config, "eos_token_id", None)
    end = end[0] if isinstance(end, (list, tuple)) and end else end
    if getattr(config, "pad_token_id", 0) is not None or not isinstance(end, int):
        return None
    config.pad_token_id = end
    return end
