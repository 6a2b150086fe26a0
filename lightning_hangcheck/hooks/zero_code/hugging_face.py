"""Plain calls of a pipeline of transformers: a section, and what goes in and comes out.

What a text pipeline generates within is watched by `generation`, with its traps and its tokens.
"""

from __future__ import annotations

import inspect
import os
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.generating import (
    WARN_AFTER,
    GenerationReport,
    GenerationWatch,
    TokenBeat,
    answers_in,
    asked_new_tokens,
    count_tokens,
    end_line,
    new_tokens,
    prompts_in_words,
    section_name,
    took_in_words,
)
from lightning_hangcheck.hooks.loading import UNSEEN, Load, ShardProgress, announce, follow_loading
from lightning_hangcheck.hooks.models import class_and_device, tell_offloaded_parts
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.sections import (
    in_section,
    inside,
    is_inside,
    is_outermost,
    is_spoken,
    passed,
)
from lightning_hangcheck.hooks.zero_code.wrapping import Call, by_name, wrap
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from inspect import Signature
    from types import ModuleType


def instrument_model_loading(module: ModuleType) -> None:
    """Watch what the classes of this module have of it.

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


def _named(what: str) -> Callable[[Call], str]:
    """Name a section after the class whose class method is called."""
    return lambda call: f"{what} ({call.instance.__name__})"


_tokenizer = in_section("tokenizer", _named("tokenizer from_pretrained"), then=lambda _: passed(4))
_configured_model = in_section("model", _named("model from_config"), then=lambda _: passed(5))
_title = _named("model from_pretrained")
_model = in_section("model", _title, then=lambda _: passed(5))


@contextmanager
def _loading_model(call: Call) -> Iterator[None]:
    recorder = current()
    if not is_outermost("model", _title(call)):
        with _model(call):
            yield
        return
    _announce(call, "model")
    progress = ShardProgress(UNSEEN, recorder.say, recorder.beat)
    with _model(call), follow_loading(progress):
        yield
    # a model alone, or with what from_pretrained tells of the load (output_loading_info=True)
    model = call.result[0] if isinstance(call.result, tuple) else call.result
    attempt("a look at the model", partial(_look_at, model))


def _look_at(model: Any) -> None:  # noqa: ANN401 - of any class of transformers
    recorder = current()
    recorder.say(class_and_device(model))
    tell_offloaded_parts(model, recorder)


def instrument_generation_config(module: ModuleType) -> None:
    """Watch how a generation config is read, but for the one that a model brings."""
    wrap(module.GenerationConfig, "from_pretrained", _loading_generation_config)


_generation_config_title = _named("model config from_pretrained")
_generation_config = in_section("model config", _generation_config_title)


@contextmanager
def _loading_generation_config(call: Call) -> Iterator[None]:
    if is_inside("model"):
        yield
        return
    if is_outermost("model config", _generation_config_title(call)):
        _announce(call, "model config")
    with _generation_config(call):
        yield


def _announce(call: Call, what: str) -> None:
    """Say what will be loaded and what may go wrong with it; no name is given for a new one."""
    name = next(iter(call.arguments), call.named.get("pretrained_model_name_or_path"))
    name = call.named.get("pretrained_model_name") if name is None else name
    if isinstance(name, (str, os.PathLike)):
        loader = call.instance.__name__
        load = Load(name=str(name), loader=loader, what=what, named=dict(call.named))
        attempt("looking at the files", partial(announce, current(), load))


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


PIPELINES_KIND = "pipeline"
OURS = __name__.partition(".")[0]


def instrument_pipelines(module: ModuleType) -> None:
    """Watch calls of all pipelines; ``module`` is transformers.pipelines.base."""
    wrap(module.Pipeline, "__call__", _calling)


@contextmanager
def _calling(call: Call) -> Iterator[None]:
    title = pipeline_title(call.instance)
    ours = type(call.instance).__module__.startswith(OURS)  # it tells by itself
    if ours or not is_outermost(PIPELINES_KIND, title):
        yield
        return
    recorder, spoken, began = current(), is_spoken(PIPELINES_KIND), time.perf_counter()
    texts = prompts_of(call) or []
    if spoken and texts:
        recorder.say(f"{title}: {_texts_in_words('prompt', texts)}")
    with inside(PIPELINES_KIND), Section(recorder, title, spoken=spoken):
        yield
    if spoken and texts:
        seconds = time.perf_counter() - began
        attempt("the answers of a pipeline", partial(_tell, title, texts, call.result, seconds))


def pipeline_title(pipeline: Any) -> str:  # noqa: ANN401 - a guest's
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
