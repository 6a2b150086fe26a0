"""A beat for each generated token, from a stopping criterion that never stops anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor


class TokenBeat:
    """Called by ``generate`` once a step: in greedy search, sampling, beam and assisted search.

    A streamer is refused by beam search, and a logits processor makes assisted search do more
    work. This leaves scores, tokens and random numbers alone.

    Args:
        beat: Says that the rank advanced.

    Attributes:
        steps: So far; a step makes one token of each sequence.
    """

    def __init__(self, beat: Callable[[], None]) -> None:
        self.steps = 0
        self._beat = beat
        self._not_done: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: object, **_: object) -> Tensor:
        """Say for each sequence that it is not done."""
        self._beat()
        self.steps += 1
        answer = self._not_done
        if answer is None or len(answer) != len(input_ids) or answer.device != input_ids.device:
            import torch

            answer = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
            self._not_done = answer
        return answer

    def __deepcopy__(self, _: object) -> TokenBeat:
        """Stay the same one: some kinds of search copy their criteria."""
        return self


def with_beat(named: Mapping[str, Any], beat: TokenBeat) -> dict[str, Any]:
    """Add the beat in front of the user's own stopping criteria.

    A call that takes no criteria (continuous batching, ``cache_implementation="paged"``) is
    returned as it is.
    """
    if named.get("cache_implementation") == "paged":
        return dict(named)
    from transformers import StoppingCriteriaList

    criteria = StoppingCriteriaList([beat, *(named.get("stopping_criteria") or ())])
    return {**named, "stopping_criteria": criteria}
