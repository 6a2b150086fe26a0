"""`generate` and `pipeline`: prompts to texts, with each step timed and a beat per token.

A `WatchedGeneration` surrounds every call of ``model.generate``: here, in our pipelines, and in a
watched script. The tokens are the model's own; only a debug run's limits change them, as reported.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks import models
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.wrapping import Call, in_section, later, replace, wrap
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Section, current
from lightning_hangcheck.text.shown import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import ModuleType

    from torch import Tensor, device

    from lightning_hangcheck.hooks.models import Model

Tokenizer: TypeAlias = Any
Pipeline: TypeAlias = Any
CRITERIA = "stopping_criteria"
MODES = ("do_sample", "num_beams", "return_dict_in_generate", "use_cache")
"""Flags that decide whether others have an effect."""
WARN_AFTER = 300.0  # seconds
FULL = 0.9  # share of a GPU's memory; the KV cache has to fit into the rest


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


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one generation: counts over all prompts and sequences, times in seconds.

    None or 0 means unknown, such as characters in a pipeline. Padding is not counted.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
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
    warnings: tuple[str, ...] = ()

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
    began, batched = time.perf_counter(), len(asked) > 1
    if batched:
        models.give_pad_token(tokenizer, recorder)
    options, cut = {}, 0
    if limits is not None:
        cut = sum(len(ids) > limits.max_length for ids in tokenizer(asked)["input_ids"])
        options = limits.say_cut(cut, tokenizer) if cut else {}
    encoded = tokenizer(asked, return_tensors="pt", padding=batched, **options)
    recorder.beat()
    device, tokenized = models.input_device(model), time.perf_counter()
    # only these, as in a pipeline: a model may refuse or misread token_type_ids
    names = [name for name in ("input_ids", "attention_mask") if name in encoded]
    inputs = {name: encoded[name].to(device) for name in names}
    times = {"tokenize_s": tokenized - began, "move_s": time.perf_counter() - tokenized}
    recorder.say(
        f"generate: prompts tokenized ({times['tokenize_s']:.3f}s), moved to {device} "
        f"({times['move_s']:.3f}s)"
    )
    watch = WatchedGeneration(model, {**inputs, **generation}, limits=limits)
    watch.figures |= {"prompt_characters": sum(map(len, asked)), "truncated_prompts": cut, **times}
    with Section(recorder, _title(model)), watch.around(warn_after_s):
        output = model.generate(**watch.named)
        began = time.perf_counter()
    texts = tokenizer.batch_decode(watch.new_tokens(output), skip_special_tokens=True)
    watch.figures["response_characters"] = sum(map(len, texts))
    watch.figures["decode_s"] = time.perf_counter() - began
    return Generated(texts=texts, output=output, report=watch.report(output))


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
    if isinstance(model, str):
        arguments = {**named, **(named.get("model_kwargs") or {})}
        with watched_load(model, f"{task} pipeline", "model", arguments):
            made = transformers.pipeline(task, model, **named)
        attempt("a look at the model", models.look_at_model, made.model, recorder)
        if made.tokenizer is not None:
            attempt("a look at the tokenizer", models.give_pad_token, made.tokenizer, recorder)
    else:
        made = transformers.pipeline(task, model, **named)
    if isinstance(made, transformers.TextGenerationPipeline):
        _watch_pipeline(made, limits, warn_after_s)
    return made


def _watch_pipeline(made: Pipeline, limits: Limits | None, warn_after_s: float) -> None:
    cut = 0  # of the prompts of the next batch
    made.last_report = None

    def shorten(call: Call) -> Any:  # noqa: ANN401 - inputs of the model
        nonlocal cut
        inputs = call.go()
        if limits is None or inputs["input_ids"].shape[-1] <= limits.max_length:
            return inputs
        cut += 1
        return call.go(**limits.say_cut(1, made.tokenizer))

    @contextmanager
    def generating(call: Call) -> Iterator[None]:
        nonlocal cut
        prepare = getattr(made, "_prepare_generate_kwargs", None)  # transformers 5
        flags = {"generation_config": getattr(made, "generation_config", None), **call.named}
        flags = dict(prepare(dict(call.named))) if prepare is not None else flags
        given = {**call.given()["model_inputs"], **flags}
        watch = WatchedGeneration(made.model, call.named, given, limits)
        watch.figures["truncated_prompts"], cut = cut, 0
        call.named = watch.named
        with Section(current(), _title(made.model)), watch.around(warn_after_s):
            yield
        made.last_report = watch.report(call.result["generated_sequence"].flatten(0, 1))

    replace(made, "preprocess", shorten)
    wrap(made, "_forward", generating)


class WatchedGeneration:
    """Watches one generation: a beat per token, warnings before and during the run.

    `named` holds the arguments of ``generate`` with the limits and the beat added; ``given`` all
    options that decide how it generates, by default the same. A mask is read from the device;
    without one, padding is counted as tokens. With ``HANGCHECK_DISABLE=1`` it only measures, and
    applies the limits.
    """

    def __init__(
        self,
        model: Model,
        named: Mapping[str, Any],
        given: Mapping[str, Any] | None = None,
        limits: Limits | None = None,
        beat: Callable[[], None] | None = None,
        *,
        spoken: bool = True,
    ) -> None:
        self._recorder, self._model = current(), model
        self._on = not self._recorder.settings.disable
        self._spoken = spoken and self._on
        self._steps, self._began = 0, 0.0
        self._warnings: list[str] = []
        self.named, flags = dict(named), dict(named if given is None else given)
        config = flags.get("generation_config") or getattr(model, "generation_config", None)
        tokens, mask = flags.get("input_ids"), flags.get("attention_mask")
        shape = tuple(getattr(flags.get("inputs") if tokens is None else tokens, "shape", ()))
        # other inputs, such as images or embeddings, are not counted
        prompts, width = shape if len(shape) == 2 else (0, 0)
        self._width: int = width
        self.figures: dict[str, Any] = {
            "prompts": prompts,
            "prompt_tokens": prompts * width if mask is None else int(mask.sum()),
        }
        self._limit(flags, config, limits)
        whole = {**(config.to_diff_dict() if config is not None else {}), **flags}
        # flags that are not given in this call were looked at when the model was loaded
        self._flags = {**{name: whole.get(name) for name in MODES}, **self.named}
        beat = beat or self._recorder.beat

        def step() -> None:
            self._steps += 1
            beat()

        if self._on and named.get("cache_implementation") != "paged":  # it takes no criteria
            from transformers import StoppingCriteriaList

            criteria = [token_beat(step), *(named.get(CRITERIA) or ())]
            self.named[CRITERIA] = StoppingCriteriaList(criteria)

    def _limit(self, flags: dict[str, Any], config: Any, limits: Limits | None) -> None:  # noqa: ANN401 - a guest's
        most = None
        for asked in (flags, {} if config is None else vars(config)):
            if most is None and asked.get("max_new_tokens") is not None:
                most = int(asked["max_new_tokens"])
            elif most is None and asked.get("max_length") is not None:
                most = int(asked["max_length"]) - self._width
        if limits is not None and most is not None and most > limits.max_new_tokens:
            self._recorder.say(
                f"generate: {most} new tokens were asked for, {limits.max_new_tokens} will be made "
                "at most (limit of a debug run: Limits(max_new_tokens=...))"
            )
            self.figures["max_new_tokens_cut"], most = most, limits.max_new_tokens
            for arguments in (self.named, flags):
                arguments.pop("max_length", None)
                arguments["max_new_tokens"] = most
        self.figures["max_new_tokens"] = most

    @contextmanager
    def around(self, warn_after_s: float = WARN_AFTER) -> Iterator[None]:
        """Watch the body, in which ``generate`` is called."""
        gpus, devices = "the memory of the GPUs", []
        if self._spoken:
            devices = models.devices_of(self._model)
            self.figures["memory_before"] = attempt(gpus, models.gpu_memory, devices) or ()
            attempt("a look before generation", self._look_before, devices[0])
        self._began, long = time.perf_counter(), "the warning of a long run"
        with later(warn_after_s, long, self._warn_long) if self._on else nullcontext():
            yield
            self.figures["generate_s"] = time.perf_counter() - self._began
        if devices:
            self.figures["memory_after"] = attempt(gpus, models.gpu_memory, devices) or ()

    def new_tokens(self, output: Any) -> Tensor:  # noqa: ANN401 - a tensor, or a structure with one
        """Cut off the prompt, or an encoder-decoder model's start token."""
        sequences: Tensor = getattr(output, "sequences", output)
        apart = getattr(self._model.config, "is_encoder_decoder", False)
        return sequences[:, 1 if apart else self._width :]

    def report(self, output: Any) -> GenerationReport:  # noqa: ANN401 - what ``generate`` returned
        """Make the report and print it."""

        def count() -> int:
            """Count the tokens of all sequences, including each sequence's end token."""
            end = getattr(self._model.generation_config, "eos_token_id", None)
            ends = set(end) if isinstance(end, (list, tuple)) else {end}
            return sum(
                next((place for place, token in enumerate(row, 1) if token in ends), len(row))
                for row in self.new_tokens(output).tolist()
            )

        report = GenerationReport(
            **self.figures,
            new_tokens=attempt("counting tokens", count) or 0,
            device=str(models.devices_of(self._model)[0]),
            warnings=tuple(self._warnings),
        )
        self._recorder.say(str(report))
        return report

    def _warn(self, sentence: str) -> None:
        self._warnings.append(sentence)
        self._recorder.say(f"WARNING: {sentence}")

    def _look_before(self, device: device) -> None:
        known = self.figures
        nouns = {"prompts": "prompt", "prompt_characters": "character", "prompt_tokens": "token"}
        counts = [several(known[name], noun) for name, noun in nouns.items() if known.get(name)]
        goes_in = ", ".join(counts) if known["prompts"] else "prompts that are no tokens"
        most, memory = known["max_new_tokens"], known["memory_before"]
        limit = "max_new_tokens not given" if most is None else f"max_new_tokens={most}"
        where = f"first parameter on {device}; {models.in_one_line(memory)}"
        self._recorder.say(f"generate: {goes_in}; {limit}; {where}")
        for gpu in memory:
            if gpu.used / gpu.total > FULL:
                self._warn(
                    f"GPU {gpu.index} is {gpu.used / gpu.total:.0%} full before generation: it may "
                    "run out of memory or become very slow; use a smaller batch or context, 8 "
                    "bits, or more GPUs"
                )
        places = models.offloaded_places(self._model)
        if places:
            self._warn(
                f"parts of the model are offloaded ({', '.join(places)}): each token waits for "
                "them to be copied; load in 8 bits or on more GPUs to keep the model on GPUs"
            )
        elif device.type == "cpu":
            self._warn(
                "the model is on the CPU, where a large one takes seconds a token; "
                "where there are GPUs, load it with device_map='auto'"
            )
        for doubt in models.doubtful_flags(self._flags):
            self._warn(doubt)

    def _warn_long(self) -> None:
        seconds = time.perf_counter() - self._began
        self._warn(
            f"generation has run for {seconds:.0f} s ({several(self._steps, 'step')} so far, "
            f"{self._steps / seconds:.2f} a second); a smaller max_new_tokens or max_time=SECONDS "
            "ends it sooner"
        )


def _title(model: Model) -> str:
    return f"generate ({type(model).__name__})"


def token_beat(beat: Callable[[], None]) -> Callable[..., Tensor]:
    """Make a stopping criterion that beats once a step and never stops."""
    # A step makes one token of every sequence. Beam search refuses a streamer, and a logits
    # processor makes assisted search do more work. A criterion leaves scores, tokens and random
    # numbers alone. It is a function because some searches copy their criteria, and a function is
    # its own copy.
    not_done: Tensor | None = None

    def criterion(input_ids: Tensor, scores: object, **_: object) -> Tensor:
        nonlocal not_done
        beat()
        now = not_done
        if now is None or len(now) != len(input_ids) or now.device != input_ids.device:
            import torch

            now = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
            not_done = now
        return now

    return criterion


def instrument_generation(module: ModuleType) -> None:
    """Watch ``generate`` of all models; ``module`` is transformers.generation.utils."""

    @contextmanager
    def generating(call: Call) -> Iterator[None]:
        tell_start()
        given, beat = call.given(), partial(models.sign_of_life, current())
        counted = {**given, "attention_mask": None}
        watch = WatchedGeneration(call.instance, call.named, counted, beat=beat, spoken=call.spoken)
        # given positionally, it cannot be given by name too; custom generate code may not know it
        if (CRITERIA in call.named or CRITERIA not in given) and not given.get("custom_generate"):
            call.named = watch.named
        with watch.around():
            yield
        if call.spoken and watch.figures["prompts"]:  # reads the device, which is idle by now
            attempt("the report", watch.report, call.result)

    section = in_section("generate", lambda call: _title(call.instance), around=generating)
    wrap(module.GenerationMixin, "generate", section)


def instrument_pipelines(module: ModuleType) -> None:
    """Watch calls of all pipelines; ``module`` is transformers.pipelines.base."""

    def title(call: Call) -> str:
        task = getattr(call.instance, "task", None) or type(call.instance).__name__
        return f"pipeline {task} ({type(getattr(call.instance, 'model', None)).__name__})"

    wrap(module.Pipeline, "__call__", in_section("pipeline", title))
