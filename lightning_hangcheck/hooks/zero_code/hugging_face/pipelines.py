"""Plain calls of a pipeline of transformers: a section, and what goes in and comes out.

What a text pipeline generates within is watched by `generation`, with its traps and its tokens.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generated import answers_in, took_in_words
from lightning_hangcheck.hooks.zero_code.sections import inside, is_outermost, is_spoken
from lightning_hangcheck.hooks.zero_code.wrapping import Call, wrap
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

KIND = "pipeline"
OURS = __name__.partition(".")[0]


def instrument_pipelines(module: ModuleType) -> None:
    """Watch calls of all pipelines; ``module`` is transformers.pipelines.base."""
    wrap(module.Pipeline, "__call__", _calling)


@contextmanager
def _calling(call: Call) -> Iterator[None]:
    title = section_name(call.instance)
    ours = type(call.instance).__module__.startswith(OURS)  # it tells by itself
    if ours or not is_outermost(KIND, title):
        yield
        return
    recorder, spoken, began = current(), is_spoken(KIND), time.perf_counter()
    texts = prompts_of(call) or []
    if spoken and texts:
        recorder.say(f"{title}: {_texts_in_words('prompt', texts)}")
    with inside(KIND), Section(recorder, title, spoken=spoken):
        yield
    if spoken and texts:
        seconds = time.perf_counter() - began
        attempt("the answers of a pipeline", partial(_tell, title, texts, call.result, seconds))


def section_name(pipeline: Any) -> str:  # noqa: ANN401 - a guest's
    """Name the section around a call of a pipeline: its task, and the class of its model."""
    task = getattr(pipeline, "task", None) or type(pipeline).__name__
    return f"pipeline {task} ({type(getattr(pipeline, 'model', None)).__name__})"


def prompts_of(call: Call) -> list[str] | None:
    """Return the texts that a pipeline is given; None where it is given something else.

    Nothing is taken out of a generator or a data set, which can be read once only.
    """
    names = ("inputs", "text_inputs")
    given = next(iter(call.arguments), None)
    if given is None:
        given = next((call.named[name] for name in names if name in call.named), None)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, (list, tuple)) or not all(isinstance(one, str) for one in texts):
        return None
    return list(texts)


def answers_of(result: Any, prompts: Sequence[str]) -> list[str]:  # noqa: ANN401 - any pipeline's
    """Return what was generated, without the prompts before it; nothing of any other task.

    Args:
        result: A record for each answer, in a list of its own for each of several prompts.
        prompts: Those that it answers.
    """
    if not isinstance(result, list):
        return []
    of_each = result if result and isinstance(result[0], list) else [result]
    pairs = zip(prompts, of_each, strict=False)
    return [answer for prompt, records in pairs for answer in answers_in(records, prompt)]


def _tell(title: str, prompts: Sequence[str], result: object, seconds: float) -> None:
    answers = answers_of(result, prompts)
    if answers:
        gave = _texts_in_words("answer", answers)
        asked = several(len(prompts), "prompt")
        current().say(f"{title}: {asked} gave {gave}; total {took_in_words(seconds)}")


def _texts_in_words(noun: str, texts: Sequence[str]) -> str:
    return f"{several(len(texts), noun)}, {several(sum(map(len, texts)), 'character')}"
