"""Which tokens a generation added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

Output = Any  # of generate: a tensor, or a structure with one called sequences


def new_tokens(model: PreTrainedModel, prompt_width: int, output: Output) -> Tensor:
    """Cut the prompt off, or the start token of a model that writes apart from its prompt.

    Args:
        model: That generated.
        prompt_width: Tokens of the prompt with its padding.
        output: What ``model.generate`` returned.
    """
    sequences: Tensor = getattr(output, "sequences", output)
    apart = getattr(model.config, "is_encoder_decoder", False)
    start = 1 if apart else prompt_width
    return sequences[:, start:]


def count_tokens(model: PreTrainedModel, made: Tensor) -> int:
    """Count the tokens of all sequences, up to and with the one that ends each."""
    end = getattr(model.generation_config, "eos_token_id", None)
    ends = set(end) if isinstance(end, (list, tuple)) else {end}
    return sum(_length(row, ends) for row in made.tolist())


def _length(row: list[int], ends: set[int | None]) -> int:
    place = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
    return place + 1
