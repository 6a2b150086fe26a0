"""What is watched of transformers: how models are loaded, generate, and are used in pipelines.

Each of these calls becomes a section. The first are told with what goes in and what came out, as
`hc.transformers` tells them; all are on the page. Weights and tokens count as signs of life, and
the tokens stay the same. What watches a load or a generation is imported with the first of them:
transformers is also imported by scripts that do neither.
"""

from __future__ import annotations

import inspect
import os
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.start import passed
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    by_name,
    in_section,
    inside,
    is_inside,
    is_outermost,
    is_spoken,
    wrap,
)
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.shown import several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

CRITERIA = "stopping_criteria"
OURS = __name__.partition(".")[0]


def instrument_loading(module: ModuleType) -> None:
    """Watch what the classes of this module load.

    Each AutoModel has copies of these methods (auto_factory.py, copy_func), so each is wrapped.
    """
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        if owner.__module__ != module.__name__ or "from_pretrained" not in vars(owner):
            continue
        if "Tokenizer" in owner.__name__ or "Processor" in owner.__name__:
            wrap(owner, "from_pretrained", _tokenizer)
        elif "Model" in owner.__name__:
            wrap(owner, "from_pretrained", _loading_model)
            wrap(owner, "from_config", _configured_model)


def instrument_config(module: ModuleType) -> None:
    """Watch how a generation config is read, but for the one that a model brings."""
    wrap(module.GenerationConfig, "from_pretrained", _loading_generation_config)


def _named(what: str) -> Callable[[Call], str]:
    """Name a section after the class whose class method is called."""
    return lambda call: f"{what} ({call.instance.__name__})"


_tokenizer = in_section("tokenizer", _named("tokenizer from_pretrained"), then=lambda _: passed(4))
_configured_model = in_section("model", _named("model from_config"), then=lambda _: passed(5))
_title = _named("model from_pretrained")
_model = in_section("model", _title, then=lambda _: passed(5))
_config_title = _named("model config from_pretrained")
_config = in_section("model config", _config_title)


@contextmanager
def _loading_model(call: Call) -> Iterator[None]:
    if not is_outermost("model", _title(call)):
        with _model(call):
            yield
        return
    from lightning_hangcheck.hooks.loading import UNSEEN, follow_loading
    from lightning_hangcheck.hooks.models import show_class_and_device

    recorder = current()
    _announce(call, "model")
    with _model(call), follow_loading(UNSEEN, recorder):
        yield
    # a model alone, or with what from_pretrained tells of the load (output_loading_info=True)
    model = call.result[0] if isinstance(call.result, tuple) else call.result
    attempt("a look at the model", show_class_and_device, model, recorder)


@contextmanager
def _loading_generation_config(call: Call) -> Iterator[None]:
    if is_inside("model"):
        yield
        return
    if is_outermost("model config", _config_title(call)):
        _announce(call, "model config")
    with _config(call):
        yield


def _announce(call: Call, what: str) -> None:
    """Say what will be loaded and what may go wrong with it; no name is given for a new one."""
    from lightning_hangcheck.hooks.loading import Load, announce

    name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
    name = call.named.get("pretrained_model_name") if name is None else name
    if isinstance(name, (str, os.PathLike)):
        loader = call.instance.__name__
        load = Load(name=str(name), loader=loader, what=what, named=dict(call.named))
        attempt("looking at the files", announce, current(), load)


def instrument_generation(module: ModuleType) -> None:
    """Watch ``generate`` of all models; ``module`` is transformers.generation.utils."""
    signature = inspect.signature(module.GenerationMixin.generate)

    @contextmanager
    def generating(call: Call) -> Iterator[None]:
        from lightning_hangcheck.hooks.generating import TokenBeat, section_name

        told = dict(by_name(call, signature))
        given = {**told.pop("kwargs", {}), **told}
        # a function of ours watches by itself, or tries what was just loaded
        ours = any(isinstance(one, TokenBeat) for one in given.get(CRITERIA) or ())
        if ours or not is_outermost("generate", section_name(call.instance)):
            yield
            return
        with inside("generate"), _watched_generation(call, given):
            yield

    wrap(module.GenerationMixin, "generate", generating)


@contextmanager
def _watched_generation(call: Call, given: Mapping[str, Any]) -> Iterator[None]:
    from lightning_hangcheck.hooks.generating import GenerationWatch, new_tokens, sign_of_life

    tell_start()
    spoken = is_spoken("generate")
    # nothing is read from the device: tokens are counted with their padding
    tokens = given.get("input_ids")
    tokens = given.get("inputs") if tokens is None else tokens
    shape = tuple(getattr(tokens, "shape", ()))
    number, width = shape if len(shape) == 2 else (0, 0)
    inputs, beat = (number, width, number * width), partial(sign_of_life, current())
    watch = GenerationWatch(call.instance, inputs, call.named, given, beat=beat, spoken=spoken)
    # given by its place, it cannot be given by name too; code of others may not know it
    if (CRITERIA in call.named or CRITERIA not in given) and not given.get("custom_generate"):
        call.named = watch.named
    with watch.around():
        yield
    if spoken and number:  # read from the device, on which nothing runs any more
        made = attempt("the new tokens", new_tokens, call.instance, width, call.result)
        if made is not None:
            attempt("the report", watch.report, made)


def instrument_pipelines(module: ModuleType) -> None:
    """Watch calls of all pipelines; ``module`` is transformers.pipelines.base."""
    wrap(module.Pipeline, "__call__", _calling_pipeline)


@contextmanager
def _calling_pipeline(call: Call) -> Iterator[None]:
    task = getattr(call.instance, "task", None) or type(call.instance).__name__
    title = f"pipeline {task} ({type(getattr(call.instance, 'model', None)).__name__})"
    ours = type(call.instance).__module__.startswith(OURS)  # it tells by itself
    if ours or not is_outermost("pipeline", title):
        yield
        return
    recorder, spoken, began = current(), is_spoken("pipeline"), time.perf_counter()
    texts = prompts_of(call) or []
    if spoken and texts:
        recorder.say(f"{title}: {_texts_in_words('prompt', texts)}")
    with inside("pipeline"), Section(recorder, title, spoken=spoken):
        yield
    answers = attempt("the answers of a pipeline", answers_of, call.result, texts)
    if spoken and answers:
        from lightning_hangcheck.hooks.generating import took_in_words

        took = took_in_words(time.perf_counter() - began)
        asked, gave = several(len(texts), "prompt"), _texts_in_words("answer", answers)
        recorder.say(f"{title}: {asked} gave {gave}; total {took}")


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
    """Return what was generated, without the prompts before it; nothing of any other task."""
    from lightning_hangcheck.hooks.generating import answers_in

    if not isinstance(result, list):
        return []
    of_each = result if result and isinstance(result[0], list) else [result]
    pairs = zip(prompts, of_each, strict=False)
    return [answer for prompt, records in pairs for answer in answers_in(records, prompt)]


def _texts_in_words(noun: str, texts: Sequence[str]) -> str:
    return f"{several(len(texts), noun)}, {several(sum(map(len, texts)), 'character')}"
