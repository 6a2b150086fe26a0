"""What is looked at and set right after a load."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.generation_flags import doubtful_flags
from lightning_hangcheck.hooks.pretrained.pad_token import set_on_model, set_on_tokenizer
from lightning_hangcheck.hooks.pretrained.placement import meta_warning, placement_lines

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.recorder.recording import Recorder


def look_at_model(model: PreTrainedModel, recorder: Recorder) -> None:
    """Say where the model is and what is wrong with it; give it the pad token that it lacks."""
    lines = [*placement_lines(model), set_on_model(model)]
    config = getattr(model, "generation_config", None)
    doubts = doubtful_flags(config.to_diff_dict()) if config is not None else []
    warnings = [meta_warning(model), *(f"generation_config.json: {doubt}" for doubt in doubts)]
    lines += [f"WARNING: {warning}" for warning in warnings if warning]
    for line in filter(None, lines):
        recorder.say(line)


def look_at_tokenizer(tokenizer: PreTrainedTokenizerBase, recorder: Recorder) -> None:
    """Give a tokenizer, or that of a processor, the pad token that it lacks."""
    line = set_on_tokenizer(getattr(tokenizer, "tokenizer", tokenizer))
    if line:
        recorder.say(line)
