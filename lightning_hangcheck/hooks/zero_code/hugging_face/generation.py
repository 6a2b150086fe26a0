"""Plain calls of ``model.generate``, a pipeline's too: a section, and a sign of life a token.

The first calls are told with what goes in and what came out, as `hc.transformers.generate` tells
them; all are on the page, and any that takes long is warned of. The tokens stay the same.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generated import (
    GenerationReport,
    end_line,
    prompts_in_words,
)
from lightning_hangcheck.hooks.pretrained.generation.generating import (
    WARN_AFTER,
    count_tokens,
    new_tokens,
)
from lightning_hangcheck.hooks.pretrained.generation.generation_watch import (
    GenerationWatch,
    TokenBeat,
    section_name,
)
from lightning_hangcheck.hooks.pretrained.generation.token_limits import asked_new_tokens
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.sections import inside, is_outermost, is_spoken
from lightning_hangcheck.hooks.zero_code.wrapping import Call, by_name, wrap
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from inspect import Signature
    from types import ModuleType

KIND = "generate"
CRITERIA = "stopping_criteria"


def instrument_generation(module: ModuleType) -> None:
    """Watch ``generate`` of all models; ``module`` is transformers.generation.utils."""
    signature = inspect.signature(module.GenerationMixin.generate)

    @contextmanager
    def generating(call: Call) -> Iterator[None]:
        given = _given(call, signature)
        if _is_watched(given) or not is_outermost(KIND, section_name(call.instance)):
            yield
            return
        with inside(KIND), _watched(call, given):
            yield

    wrap(module.GenerationMixin, "generate", generating)


@contextmanager
def _watched(call: Call, given: Mapping[str, Any]) -> Iterator[None]:
    tell_start()
    recorder, spoken = current(), is_spoken(KIND)
    prompts = Prompts(call.instance, given)
    watch = GenerationWatch(
        recorder,
        call.instance,
        WARN_AFTER,
        prompts.in_words,
        beat=_sign_of_life,
        spoken=spoken,
    )
    # given by its place, it cannot be given by name too; code of others may not know it
    if (CRITERIA in call.named or CRITERIA not in given) and not given.get("custom_generate"):
        call.named = watch.arguments(call.named, given)
    with watch.around():
        yield
    if spoken and prompts.number:
        attempt("the report", partial(_report, call, prompts, watch))


class Prompts:
    """What goes into a plain call of ``generate``.

    Nothing is read from the device: its tokens are counted with their padding.

    Args:
        model: That generates.
        given: Its arguments by their names.

    Attributes:
        number: Of prompts; 0 where they come as something else than tokens.
        width: Tokens of each.
        most: New tokens that each may get; None where nothing says it.
    """

    def __init__(self, model: Any, given: Mapping[str, Any]) -> None:  # noqa: ANN401 - a guest's
        tokens = given.get("input_ids")
        tokens = given.get("inputs") if tokens is None else tokens
        shape = tuple(getattr(tokens, "shape", ()))
        self.number: int
        self.width: int
        self.number, self.width = shape if len(shape) == 2 else (0, 0)
        default = getattr(model, "generation_config", None)
        self.most = asked_new_tokens(default, given, self.width)

    @property
    def in_words(self) -> str:
        """For the first line."""
        if not self.number:
            return "prompts that are no tokens"
        return prompts_in_words(self.number, self.number * self.width, new_tokens=self.most)


def _given(call: Call, signature: Signature) -> dict[str, Any]:
    told = dict(by_name(call, signature))
    return {**told.pop("kwargs", {}), **told}


def _is_watched(given: Mapping[str, Any]) -> bool:
    """Whether a function of ours calls: it watches by itself, or tries what was just loaded."""
    return any(isinstance(one, TokenBeat) for one in given.get(CRITERIA) or ())


def _sign_of_life() -> None:
    """Say that the rank goes on; no beat, which would speak for the pace of the script's loop."""
    recorder = current()
    if recorder.in_training_thread():
        page = recorder.page
        page.show_phase(page.phase)


def _report(call: Call, prompts: Prompts, watch: GenerationWatch) -> None:
    """Tell the end; the new tokens are read from the device, on which nothing runs any more."""
    made = new_tokens(call.instance, prompts.width, call.result)
    figures = GenerationReport(
        prompts=prompts.number,
        prompt_tokens=prompts.number * prompts.width,
        max_new_tokens=prompts.most,
        new_tokens=count_tokens(call.instance, made),
        tokenize_s=0.0,
    )
    current().say(end_line(watch.complete(figures)))
