"""`generate` and `pipeline`: prompts to texts, with each step timed and a beat per token.

One watcher surrounds every call of ``model.generate``: ours, a pipeline's, a watched script's. The
tokens are the model's own; only a debug run's limits change them, as reported.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks import models
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.wrapping import Call, in_section, later, replace, wrap
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.shown import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from torch import Tensor

    from lightning_hangcheck.hooks.models import Model

Tokenizer: TypeAlias = Any
Pipeline: TypeAlias = Any
CRITERIA = "stopping_criteria"
MODES = ("do_sample", "num_beams", "return_dict_in_generate", "use_cache")
"""Flags that decide whether others have an effect."""
WARN_AFTER = 300.0  # seconds
FULL = 0.9  # share of a GPU's memory; the KV cache has to fit into the rest
_asked = threading.local()  # attribute now: what this thread asks of the generation that comes next


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a debug run; `BadUsage` if one is not a positive number."""

    max_new_tokens: int = 512
    """Per sequence, whatever else is asked for."""
    max_length: int = 2048
    """Tokens per prompt; the tokenizer cuts the prompt on its truncation side."""

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.max_length < 1:
            raise BadUsage(f"{self} leaves nothing to generate", "write numbers above 0")

    def say_cut(self, prompts: int, tokenizer: Tokenizer) -> dict[str, Any]:
        """Report that prompts are cut; return the tokenizer options that cut them."""
        current().say(
            f"generate: {several(prompts, 'prompt')} cut to {self.max_length} tokens on the "
            f"{tokenizer.truncation_side} (limit of a debug run: Limits(max_length=...))"
        )
        return {"truncation": True, "max_length": self.max_length}


class GenerationReport(msgspec.Struct, kw_only=True):
    """Figures of one generation: counts over all prompts and sequences, times in seconds.

    None or 0 means unknown, such as characters in a pipeline. Padding is not counted.
    """

    prompts: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    tokenize_s: float = 0.0
    device: str = ""
    move_s: float = 0.0
    generate_s: float = 0.0
    decode_s: float = 0.0
    prompt_characters: int | None = None
    max_new_tokens: int | None = None
    response_characters: int | None = None
    truncated_prompts: int = 0
    max_new_tokens_cut: int | None = None
    memory_before: tuple[models.GpuMemory, ...] = ()
    memory_after: tuple[models.GpuMemory, ...] = ()
    warnings: list[str] = []

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second of ``model.generate``."""
        return self.new_tokens / self.generate_s if self.generate_s else 0.0

    @property
    def total_s(self) -> float:
        """Seconds from the prompts to the texts."""
        return self.tokenize_s + self.move_s + self.generate_s + self.decode_s

    def __str__(self) -> str:
        read = self.response_characters
        characters = "" if read is None else f" ({several(read, 'character')})"
        around = {"tokenized": self.tokenize_s, "moved": self.move_s, "decoded": self.decode_s}
        steps = "".join(f"{name} ({took:.3f}s); " for name, took in around.items() if took)
        minutes = f" = {seconds_in_words(self.total_s)}" if self.total_s >= 60 else ""
        return (
            f"generate: {several(self.prompts, 'prompt')} of "
            f"{several(self.prompt_tokens, 'token')} gave "
            f"{self.new_tokens} new ones{characters} in {self.generate_s:.3f} s "
            f"({self.tokens_per_second:.1f} a second); {models.in_one_line(self.memory_after)}; "
            f"{steps}total {self.total_s:.3f} s{minutes}"
        )

    def warn(self, sentence: str) -> None:
        """Print a warning and keep it."""
        self.warnings.append(sentence)
        current().say(f"WARNING: {sentence}")


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `generate`: new texts without their prompts, and the model's output."""

    texts: list[str]
    output: Any
    report: GenerationReport


def generate(
    model: Model,
    tokenizer: Tokenizer,
    prompts: str | Sequence[str],
    *,
    debug: bool | Limits = False,
    warn_after_s: float = WARN_AFTER,
    **generation: object,
) -> Generated:
    """Call ``model.generate`` for prompts, and report each step.

    The tokens are those that ``model.generate`` makes by itself from the same seed. Errors of the
    tokenizer and the model pass unchanged.

    Args:
        model: A model that can generate.
        tokenizer: Its end-of-sequence token becomes its pad token if several prompts need one.
        prompts: One or several.
        debug: Keep the run finite, and report what that changes: at most 512 new tokens, prompts
            cut to 2048 tokens; or your own limits.
        warn_after_s: Seconds after which a generation that still runs is reported.
        **generation: Options of ``model.generate``.
    """
    recorder, limits = current(), Limits() if debug is True else debug or None
    asked = [prompts] if isinstance(prompts, str) else list(prompts)
    report, options = GenerationReport(prompt_characters=sum(map(len, asked))), {}
    began = time.perf_counter()
    if len(asked) > 1:
        attempt("a look at the pad token", models.give_pad_token, tokenizer, recorder)
    if limits is not None:
        lengths = map(len, tokenizer(asked)["input_ids"])
        report.truncated_prompts = cut = sum(length > limits.max_length for length in lengths)
        options = limits.say_cut(cut, tokenizer) if cut else {}
    encoded = tokenizer(asked, return_tensors="pt", padding=len(asked) > 1, **options)
    tokenized, device = time.perf_counter(), models.input_device(model)
    # only these, as in a pipeline: a model may refuse or misread token_type_ids
    names = [name for name in ("input_ids", "attention_mask") if name in encoded]
    inputs = {name: encoded[name].to(device) for name in names}
    report.tokenize_s, report.move_s = tokenized - began, time.perf_counter() - tokenized
    with _asking(report, limits, warn_after_s):
        output = model.generate(**inputs, **generation)
    began = time.perf_counter()
    new_tokens = _without_prompt(model, output, inputs["input_ids"])
    texts = tokenizer.batch_decode(new_tokens, skip_special_tokens=True)
    report.decode_s = time.perf_counter() - began
    report.response_characters = sum(map(len, texts))
    recorder.say(str(report))
    return Generated(texts=texts, output=output, report=report)


def pipeline(
    task: str = "text-generation",
    model: str | Model | None = None,
    *,
    debug: bool | Limits = False,
    warn_after_s: float = WARN_AFTER,
    **named: Any,  # noqa: ANN401 - they are transformers' own, of any type
) -> Pipeline:
    """Call ``transformers.pipeline``, and watch how the pipeline loads and generates.

    Returns that pipeline, with a ``last_report`` if the task is text-generation; other tasks are
    watched only while loading. ``debug`` and ``warn_after_s`` are as in `generate`.
    """
    import transformers

    from lightning_hangcheck.hooks.loading import watched_load

    recorder, limits = current(), Limits() if debug is True else debug or None
    arguments = {**named, **(named.get("model_kwargs") or {})}
    with watched_load(model, f"{task} pipeline", arguments):
        made = transformers.pipeline(task, model, **named)
    if isinstance(model, str):
        attempt("a look at the model", models.look_at_model, made.model, recorder)
        for guest in (made.model, made.tokenizer):
            attempt("a look at the pad token", models.give_pad_token, guest, recorder)
    if not isinstance(made, transformers.TextGenerationPipeline):
        return made
    made.last_report, coming = None, GenerationReport()

    def shorten(call: Call) -> Any:  # noqa: ANN401 - inputs of the model
        inputs = call.go()
        if limits is None or inputs["input_ids"].shape[-1] <= limits.max_length:
            return inputs
        coming.truncated_prompts += 1
        return call.go(**limits.say_cut(1, made.tokenizer))

    @contextmanager
    def generating(_: Call) -> Iterator[None]:
        nonlocal coming
        report, coming = coming, GenerationReport()
        with _asking(report, limits, warn_after_s):
            yield
        recorder.say(str(report))
        made.last_report = report

    replace(made, "preprocess", shorten)
    wrap(made, "_forward", generating)
    return made


@contextmanager
def _asking(report: GenerationReport, limits: Limits | None, warn_after_s: float) -> Iterator[None]:
    """Have the generation of the body fill this report, and keep to these limits."""
    instrument_generation(import_module("transformers.generation.utils"))
    _asked.now = report, limits, warn_after_s
    try:
        yield
    finally:
        _asked.now = None


@contextmanager
def _generating(call: Call) -> Iterator[None]:
    """Watch a call of ``generate``: a beat per token, warnings before and during it, figures."""
    tell_start()
    model, recorder, given, steps = call.instance, current(), call.given(), 0
    asked = getattr(_asked, "now", None)
    report, limits, warn_after_s = asked or (GenerationReport(), None, WARN_AFTER)
    named, on = dict(call.named), not recorder.settings.disable
    spoken = on and (call.spoken or asked is not None)
    config = given.get("generation_config") or getattr(model, "generation_config", None)
    prompts = given.get("inputs") if given.get("input_ids") is None else given["input_ids"]
    shape, mask = tuple(getattr(prompts, "shape", ())), given.get("attention_mask")
    width = shape[1] if len(shape) == 2 else 0
    if len(shape) == 2:  # other inputs, such as images or embeddings, are not counted
        report.prompts = shape[0]
        # a mask must be read from the device, which a watched script does not wait for
        report.prompt_tokens = int(mask.sum()) if asked and mask is not None else shape[0] * width
    options = {**getattr(config, "__dict__", {}), **given}
    most, length = options.get("max_new_tokens"), options.get("max_length")
    report.max_new_tokens = most = length and length - width if most is None else most
    if limits is not None and isinstance(most, int) and most > limits.max_new_tokens:
        recorder.say(
            f"generate: {most} new tokens were asked for, {limits.max_new_tokens} will be made "
            "at most (limit of a debug run: Limits(max_new_tokens=...))"
        )
        report.max_new_tokens_cut, report.max_new_tokens = most, limits.max_new_tokens
        named.pop("max_length", None)
        named["max_new_tokens"] = limits.max_new_tokens
    # flags that are not given in this call were looked at when the model was loaded
    flags = {**{name: options.get(name) for name in MODES}, **named}

    def step() -> None:
        nonlocal steps
        steps += 1
        models.sign_of_life(recorder)

    def warn_long() -> None:
        seconds = time.perf_counter() - began
        report.warn(
            f"generation has run for {seconds:.0f} s ({several(steps, 'step')} so far, "
            f"{steps / seconds:.2f} a second); a smaller max_new_tokens or max_time=SECONDS "
            "ends it sooner"
        )

    # given positionally, criteria cannot be given by name too; custom code may not know them
    foreign = given.get("custom_generate") or given.get("cache_implementation") == "paged"
    if on and not foreign and (CRITERIA in named or CRITERIA not in given):
        from transformers import StoppingCriteriaList

        criteria = [token_beat(step), *(named.get(CRITERIA) or ())]
        named[CRITERIA] = StoppingCriteriaList(criteria)
    call.named = named
    devices = models.devices_of(model) if spoken or asked else []
    report.device = str(next(iter(devices), ""))
    if spoken:
        attempt("a look before generation", _look_before, report, model, flags)
    began = time.perf_counter()
    with later(warn_after_s, "the warning of a long run", warn_long) if on else nullcontext():
        yield
    report.generate_s = time.perf_counter() - began
    if spoken:
        report.memory_after = attempt("a look at the GPUs", models.gpu_memory, devices) or ()
    if report.prompts and devices:  # reads the device, which is idle by now
        count = partial(_count_new, model, call.result, prompts)
        report.new_tokens = attempt("counting tokens", count) or 0
        if asked is None:
            recorder.say(str(report))


def _look_before(report: GenerationReport, model: Model, flags: Mapping[str, Any]) -> None:
    """Say what goes in, and warn of what makes this generation slow or fail."""
    report.memory_before = models.gpu_memory(models.devices_of(model))
    nouns = {"prompts": "prompt", "prompt_characters": "character", "prompt_tokens": "token"}
    known = [(getattr(report, name), noun) for name, noun in nouns.items()]
    goes_in = ", ".join(several(count, noun) for count, noun in known if count)
    current().say(
        f"generate: {goes_in if report.prompts else 'prompts that are no tokens'}; "
        f"max_new_tokens={report.max_new_tokens or 'not given'}; "
        f"first parameter on {report.device}; {models.in_one_line(report.memory_before)}"
    )
    for gpu in report.memory_before:
        if gpu.used / gpu.total > FULL:
            report.warn(
                f"GPU {gpu.index} is {gpu.used / gpu.total:.0%} full before generation: it may "
                "run out of memory or become very slow; use a smaller batch or context, 8 "
                "bits, or more GPUs"
            )
    places = models.offloaded_places(model)
    if places:
        report.warn(
            f"parts of the model are offloaded ({', '.join(places)}): each token waits for "
            "them to be copied; load in 8 bits or on more GPUs to keep the model on GPUs"
        )
    elif report.device == "cpu":
        report.warn(
            "the model is on the CPU, where a large one takes seconds a token; "
            "where there are GPUs, load it with device_map='auto'"
        )
    for doubt in models.doubtful_flags(flags):
        report.warn(doubt)


def _without_prompt(model: Model, output: Any, prompts: Tensor) -> Tensor:  # noqa: ANN401 - or a structure
    """Cut off the prompt, or an encoder-decoder model's start token."""
    sequences: Tensor = getattr(output, "sequences", output)
    apart = getattr(model.config, "is_encoder_decoder", False)
    return sequences[:, 1 if apart else prompts.shape[-1] :]


def _count_new(model: Model, output: Any, prompts: Tensor) -> int:  # noqa: ANN401 - as above
    """Count the new tokens of all sequences, with each sequence's end token."""
    end = getattr(model.generation_config, "eos_token_id", None)
    ends = set(end) if isinstance(end, (list, tuple)) else {end}
    return sum(
        next((place for place, token in enumerate(row, 1) if token in ends), len(row))
        for row in _without_prompt(model, output, prompts).tolist()
    )


def token_beat(beat: Callable[[], None]) -> Callable[..., Tensor]:
    """Make a stopping criterion that beats once a step and never stops."""
    # A step makes one token of every sequence. Beam search refuses a streamer, and a logits
    # processor makes assisted search do more work. A criterion leaves scores, tokens and random
    # numbers alone. It is a function because some searches copy their criteria, and a function is
    # its own copy.
    import torch

    def criterion(input_ids: Tensor, scores: object, **_: object) -> Tensor:
        beat()
        return input_ids.new_zeros(len(input_ids), dtype=torch.bool)

    return criterion


@cache
def instrument_generation(module: ModuleType) -> None:
    """Watch ``generate`` of all models; ``module`` is transformers.generation.utils."""
    title = lambda call: f"generate ({type(call.instance).__name__})"  # noqa: E731
    section = in_section("generate", title, around=_generating)
    wrap(module.GenerationMixin, "generate", section)
