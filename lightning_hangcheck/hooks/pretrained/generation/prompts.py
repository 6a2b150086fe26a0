"""Prompts on their way to the model: tokens, cut to a limit if there is one, on its device."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.pretrained.generation_flags import set_on_tokenizer
from lightning_hangcheck.hooks.pretrained.placement import input_device
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.hooks.pretrained.generation.token_limits import Limits
    from lightning_hangcheck.recorder.lifecycle import Recorder


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts that are ready for ``model.generate``.

    Attributes:
        inputs: Its arguments, on the device.
        tokens: Of all prompts, without padding.
        truncated: How many were cut.
        tokenize_s: Seconds, as the other.
        move_s: To the device.
    """

    inputs: dict[str, Any]
    tokens: int
    truncated: int
    tokenize_s: float
    move_s: float

    @property
    def width(self) -> int:
        """Tokens of a prompt with its padding."""
        return int(self.inputs["input_ids"].shape[1])


def prepare(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    limits: Limits | None,
    recorder: Recorder,
) -> Prompts:
    """Tokenize, cut and move prompts, and say how it went.

    Raises:
        Exception: Whatever the tokenizer raises.
    """
    import torch

    began = time.perf_counter()
    batched = len(prompts) > 1
    pad_token_set = set_on_tokenizer(tokenizer) if batched else None
    if pad_token_set:
        recorder.say(pad_token_set)
    options, truncated = _cut(tokenizer, prompts, limits, recorder)
    tokens = tokenizer(list(prompts), return_tensors="pt", padding=batched, **options)
    recorder.beat()
    device, tokenized = input_device(model), time.perf_counter()
    # no others, as in a pipeline: a model may refuse or misread token_type_ids
    inputs = {name: tokens[name] for name in ("input_ids", "attention_mask") if name in tokens}
    made = Prompts(
        inputs={name: tensor.to(device) for name, tensor in inputs.items()},
        tokens=int(inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).sum()),
        truncated=truncated,
        tokenize_s=tokenized - began,
        move_s=time.perf_counter() - tokenized,
    )
    recorder.say(
        f"generate: prompts tokenized ({made.tokenize_s:.3f}s), moved to {device} "
        f"({made.move_s:.3f}s)"
    )
    return made


def _cut(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[str],
    limits: Limits | None,
    recorder: Recorder,
) -> tuple[dict[str, Any], int]:
    """Options that cut the prompts to the limit, and how many are longer than it."""
    if limits is None:
        return {}, 0
    longest = limits.max_length
    too_long = sum(len(ids) > longest for ids in tokenizer(list(prompts))["input_ids"])
    if not too_long:
        return {}, 0
    recorder.say(cut_prompts_in_words(too_long, longest, tokenizer))
    return {"truncation": True, "max_length": longest}, too_long


def cut_prompts_in_words(count: int, longest: int, tokenizer: PreTrainedTokenizerBase) -> str:
    """Say that prompts were cut."""
    return (
        f"generate: {several(count, 'prompt')} cut to {longest} tokens on the "
        f"{tokenizer.truncation_side} (limit of a debug run: Limits(max_length=...))"
    )
