"""`pipeline`: transformers' own, loaded and generating with a view of what it does."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.hooks.loading import Load, look_at_model, look_at_tokenizer, watched_load
from lightning_hangcheck.hooks.models import (
    GpuMemory,
    doubtful_flags,
    first_device,
    gpu_memory,
    in_one_line,
    input_device,
    offloaded_places,
    set_on_tokenizer,
)
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import TracebackType

    from torch import Tensor
    from transformers import GenerationConfig, Pipeline, PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    from lightning_hangcheck.recorder.lifecycle import Recorder


MINUTE_S = 60.0


class GenerationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one generation.

    Attributes:
        prompts: How many.
        prompt_tokens: Of all prompts, without padding.
        prompt_characters: Of all prompts; None where they came as tokens.
        max_new_tokens: Asked for; None where nothing says it.
        truncated_prompts: How many were cut to the limit of a debug run.
        new_tokens: Generated in all sequences, up to and with the end of each.
        response_characters: Of all new texts; None where they were not counted.
        max_new_tokens_cut: What ``max_new_tokens`` was before the limit of a debug run acted.
        device: Of the first parameter.
        tokenize_s: Seconds, as all times here.
        move_s: Of the prompts to the device.
        generate_s: The call of ``model.generate``.
        decode_s: From tokens to texts.
        memory_before: Of each GPU that the model is on; empty on the CPU.
        memory_after: The same after it.
        warnings: What was said about it.
    """

    prompts: int
    prompt_tokens: int
    new_tokens: int
    tokenize_s: float
    device: str = ""
    move_s: float = 0.0
    generate_s: float = 0.0
    decode_s: float = 0.0
    prompt_characters: int | None = None
    max_new_tokens: int | None = None
    response_characters: int | None = None
    truncated_prompts: int = 0
    max_new_tokens_cut: int | None = None
    memory_before: tuple[GpuMemory, ...] = ()
    memory_after: tuple[GpuMemory, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def tokens_per_second(self) -> float:
        """New tokens of all sequences by the seconds of ``model.generate``."""
        return self.new_tokens / self.generate_s if self.generate_s else 0.0

    @property
    def total_s(self) -> float:
        """Seconds from the prompts to the texts."""
        return self.tokenize_s + self.move_s + self.generate_s + self.decode_s


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `generate`.

    Attributes:
        texts: What was generated, without the prompt; several for a prompt if
            ``num_return_sequences`` says so.
        output: What ``model.generate`` returned, unchanged.
        report: How it went.
    """

    texts: list[str]
    output: Any
    report: GenerationReport


def prompts_in_words(
    prompts: int, tokens: int, *, characters: int | None = None, new_tokens: int | None = None
) -> str:
    """Say what goes into a generation, and how much may come out of it.

    Args:
        prompts: How many.
        tokens: Of all of them.
        characters: Likewise; None where they came as tokens.
        new_tokens: Most of each; None where nothing says it.
    """
    counts = [several(prompts, "prompt"), several(tokens, "token")]
    if characters is not None:
        counts.insert(1, several(characters, "character"))
    most = "max_new_tokens not given" if new_tokens is None else f"max_new_tokens={new_tokens}"
    return f"{', '.join(counts)}; {most}"


def answers_in(records: object, prompt: str) -> list[str]:
    """Return what a text pipeline generated for a prompt, without the prompt before it.

    Args:
        records: What it returned for that prompt; of a pipeline for another task there is nothing.
        prompt: As it was given.
    """
    if not isinstance(records, list):
        return []
    texts = (one.get("generated_text") for one in records if isinstance(one, dict))
    return [text.removeprefix(prompt) for text in texts if isinstance(text, str)]


def end_line(report: GenerationReport) -> str:
    """Say what a generation came to."""
    read = report.response_characters
    characters = "" if read is None else f" ({several(read, 'character')})"
    memory = in_one_line(report.memory_after)
    return (
        f"generate: {several(report.prompts, 'prompt')} of "
        f"{several(report.prompt_tokens, 'token')} gave "
        f"{report.new_tokens} new ones{characters} in {report.generate_s:.3f} s "
        f"({report.tokens_per_second:.1f} a second); {memory}; "
        f"{_around(report)}total {took_in_words(report.total_s)}"
    )


def took_in_words(seconds: float) -> str:
    """Write a duration in seconds, past a minute in minutes too: ``128.350 s = 2 min 08 s``."""
    minutes = f" = {seconds_in_words(seconds)}" if seconds >= MINUTE_S else ""
    return f"{seconds:.3f} s{minutes}"


def _around(report: GenerationReport) -> str:
    """The steps around the model's own, as far as there were any."""
    seconds = {
        "tokenized": report.tokenize_s,
        "moved": report.move_s,
        "decoded": report.decode_s,
    }
    said = ", ".join(f"{name} ({took:.3f}s)" for name, took in seconds.items() if took)
    return f"{said}; " if said else ""


class LongRun:
    """``with LongRun(300.0, warn):`` calls ``warn`` once if the block takes longer than that.

    Args:
        after_s: Seconds.
        warn: Called in another thread, which a process need not wait for at its end.
    """

    def __init__(self, after_s: float, warn: Callable[[], None]) -> None:
        seconds = min(after_s, threading.TIMEOUT_MAX)
        self._timer = threading.Timer(seconds, attempt, ("the warning of a long run", warn))
        self._timer.daemon = True

    def __enter__(self) -> None:
        attempt("the timer of a long run", self._timer.start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a debug run may get.

    Attributes:
        max_new_tokens: Most new tokens of a sequence, whatever else is asked for.
        max_length: Most tokens of a prompt; the tokenizer cuts it on its truncation side.

    Raises:
        BadUsage: One of them is no positive number.
    """

    max_new_tokens: int = 512
    max_length: int = 2048

    def __post_init__(self) -> None:
        """Refuse what would generate nothing."""
        if self.max_new_tokens < 1 or self.max_length < 1:
            raise BadUsage(f"{self} leaves nothing to generate", "write numbers above 0")


def limits_of(debug: bool | Limits) -> Limits | None:
    """Return the limits that a value of ``debug`` means, None for none."""
    if isinstance(debug, Limits):
        return debug
    return Limits() if debug else None


def asked_new_tokens(
    default: GenerationConfig | None, named: Mapping[str, Any], prompt_length: int
) -> int | None:
    """How many new tokens a call of ``generate`` may make; None where nothing says it.

    Args:
        default: What counts where the arguments have no generation config.
        named: Arguments of ``generate``.
        prompt_length: Tokens that ``max_length`` counts too.
    """
    config = named.get("generation_config") or default
    asked = _new_tokens(named, prompt_length)
    if asked is None and config is not None:
        asked = _new_tokens(vars(config), prompt_length)
    return asked


def beyond(
    limits: Limits | None,
    default: GenerationConfig | None,
    named: Mapping[str, Any],
    prompt_length: int,
) -> int | None:
    """How many new tokens a call of ``generate`` asks for, if that is more than the limit.

    Args:
        limits: None for no limit.
        default: What counts where the arguments have no generation config.
        named: Arguments of ``generate``.
        prompt_length: Tokens that ``max_length`` counts too.
    """
    asked = asked_new_tokens(default, named, prompt_length)
    if limits is None or asked is None or asked <= limits.max_new_tokens:
        return None
    return asked


def capped(named: Mapping[str, Any], limits: Limits) -> dict[str, Any]:
    """Arguments of ``generate`` that make no more new tokens than the limit."""
    rest = {name: value for name, value in named.items() if name != "max_length"}
    return {**rest, "max_new_tokens": limits.max_new_tokens}


def cut_in_words(asked: int, limits: Limits) -> str:
    """Say that new tokens were capped."""
    return (
        f"generate: {asked} new tokens were asked for, {limits.max_new_tokens} will be made at "
        "most (limit of a debug run: Limits(max_new_tokens=...))"
    )


def _new_tokens(flags: Mapping[str, Any], prompt_length: int) -> int | None:
    if flags.get("max_new_tokens") is not None:
        return int(flags["max_new_tokens"])
    total = flags.get("max_length")
    return None if total is None else int(total) - prompt_length


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


FULL = 0.9  # share of a GPU's memory; what a generation remembers has to fit into the rest


class GenerationWatch:
    """Watches one generation: a section, a beat per token, warnings before and while it runs.

    Args:
        recorder: Of this process.
        model: That generates.
        warn_after_s: Seconds after which a running generation is spoken of.
        goes_in: Prompts and how much may come of them, in words.
        beat: Called once a token; by default the process's own beat.
        spoken: Say what there is to say, but for a run that takes long, which is said always.

    With ``HANGCHECK_DISABLE=1`` it only measures.
    """

    def __init__(
        self,
        recorder: Recorder,
        model: PreTrainedModel,
        warn_after_s: float,
        goes_in: str,
        *,
        beat: Callable[[], None] | None = None,
        spoken: bool = True,
    ) -> None:
        self._seconds = 0.0
        self._before: tuple[GpuMemory, ...] = ()
        self._after: tuple[GpuMemory, ...] = ()
        self._warnings: list[str] = []
        self._on = not recorder.settings.disable
        self._recorder = recorder
        self._model = model
        self._warn_after_s = warn_after_s
        self._goes_in = goes_in
        self._beat = TokenBeat(beat or recorder.beat)
        self._spoken = spoken
        self._began = time.perf_counter()

    @contextmanager
    def around(self) -> Iterator[None]:
        """Watch what is called within; its exceptions pass through."""
        with self._watched() if self._on else nullcontext():
            self._began = time.perf_counter()
            yield
            self._seconds = time.perf_counter() - self._began

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if self._spoken:
            self._before = self._memory()
            attempt("a look before generation", self._warn_before)
        section = Section(self._recorder, section_name(self._model), spoken=self._spoken)
        with section, LongRun(self._warn_after_s, self._warn_long):
            yield
        if self._spoken:
            self._after = self._memory()

    def arguments(self, named: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for ``generate`` with a beat per token among them; looks at the flags, too.

        Args:
            named: What the user gave.
            flags: The same with what a pipeline adds.
        """
        if not self._on:
            return dict(named)
        if self._spoken:
            doubts = attempt("a look at generation flags", partial(self._doubts, named, flags))
            for doubt in doubts or ():
                self._warn(doubt)
        added = attempt("the beat per token", partial(with_beat, named, self._beat))
        return dict(named) if added is None else added

    def complete(self, report: GenerationReport) -> GenerationReport:
        """Add to a report what was seen here."""
        return msgspec.structs.replace(
            report,
            device=str(first_device(self._model)),
            generate_s=self._seconds,
            memory_before=self._before,
            memory_after=self._after,
            warnings=tuple(self._warnings),
        )

    def _doubts(self, named: Mapping[str, Any], flags: Mapping[str, Any]) -> list[str]:
        config = flags.get("generation_config") or getattr(self._model, "generation_config", None)
        base = config.to_diff_dict() if config is not None else {}
        return doubtful_flags({**base, **flags}, given=named)

    def _memory(self) -> tuple[GpuMemory, ...]:
        return attempt("the memory of the GPUs", partial(gpu_memory, self._model)) or ()

    def _warn(self, sentence: str) -> None:
        self._warnings.append(sentence)
        self._recorder.say(f"WARNING: {sentence}")

    def _warn_before(self) -> None:
        device = first_device(self._model)
        memory = in_one_line(self._before)
        self._recorder.say(f"generate: {self._goes_in}; first parameter on {device}; {memory}")
        for doubt in doubts_before(device.type, self._before, offloaded_places(self._model)):
            self._warn(doubt)

    def _warn_long(self) -> None:
        seconds, steps = time.perf_counter() - self._began, self._beat.steps
        pace = f"{several(steps, 'step')} so far, {steps / seconds:.2f} a second"
        self._warn(
            f"generation has run for {seconds:.0f} s ({pace}); "
            "a smaller max_new_tokens or max_time=SECONDS ends it sooner"
        )


def section_name(model: PreTrainedModel) -> str:
    """Name the section around a generation."""
    return f"generate ({type(model).__name__})"


def doubts_before(
    device_type: str, memory: Sequence[GpuMemory], offloaded: Sequence[str]
) -> list[str]:
    """Name each doubt and the way out.

    Args:
        device_type: Of the first parameter.
        memory: Of the GPUs that the model is on.
        offloaded: Places beside a GPU that hold parts of the model.
    """
    found = [
        f"GPU {gpu.index} is {gpu.share:.0%} full before generation: it may run out of memory or "
        "become very slow; use a smaller batch or context, 8 bits, or more GPUs"
        for gpu in memory
        if gpu.share > FULL
    ]
    if offloaded:
        found.append(
            f"parts of the model are offloaded ({', '.join(offloaded)}): each token waits for them "
            "to be copied; load in 8 bits or on more GPUs to keep the model on GPUs"
        )
    elif device_type == "cpu":
        found.append(
            "the model is on the CPU, where a large one takes seconds a token; "
            "where there are GPUs, load it with device_map='auto'"
        )
    return found


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


Output = Any  # of generate: a tensor, or a structure with one called sequences
WARN_AFTER = 300.0  # seconds


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: str | Sequence[str],
    *,
    debug: bool | Limits = False,
    warn_after_s: float = WARN_AFTER,
    **generation: object,
) -> Generated:
    """Call ``model.generate`` for prompts, and say how each step of it goes.

    Example:
        >>> made = generate(model, tokenizer, ["Once upon a time"], max_new_tokens=100)
        >>> made.texts[0], made.report.tokens_per_second

    The tokens are those that ``model.generate`` makes by itself from the same seed. Only ``debug``
    changes them, and says so when it does.

    Args:
        model: That can generate.
        tokenizer: Of the model; a missing pad token is set from its end-of-sequence token where
            several prompts need one.
        prompts: One or several.
        debug: Keep the run finite: at most 512 new tokens, prompts cut to 2048 tokens; or limits
            of your own.
        warn_after_s: Seconds after which a generation that still runs is spoken of.
        **generation: Of ``model.generate``.

    Raises:
        Exception: Whatever the tokenizer or ``model.generate`` raises, unchanged.
    """
    recorder, limits = current(), limits_of(debug)
    asked = [prompts] if isinstance(prompts, str) else list(prompts)
    ready = prepare(model, tokenizer, asked, limits, recorder)
    default = getattr(model, "generation_config", None)
    cut = beyond(limits, default, generation, ready.width)
    if limits is not None and cut is not None:
        recorder.say(cut_in_words(cut, limits))
        generation = capped(generation, limits)
    characters, most = sum(map(len, asked)), asked_new_tokens(default, generation, ready.width)
    goes_in = prompts_in_words(len(asked), ready.tokens, characters=characters, new_tokens=most)
    watch = GenerationWatch(recorder, model, warn_after_s, goes_in)
    with watch.around():
        output = model.generate(**ready.inputs, **watch.arguments(generation, generation))
    began = time.perf_counter()
    made = new_tokens(model, ready.width, output)
    texts = tokenizer.batch_decode(made, skip_special_tokens=True)
    decode_s = time.perf_counter() - began
    count = attempt("counting tokens", partial(count_tokens, model, made)) or 0
    figures = GenerationReport(
        prompts=len(asked),
        prompt_tokens=ready.tokens,
        prompt_characters=characters,
        truncated_prompts=ready.truncated,
        max_new_tokens=most,
        max_new_tokens_cut=cut,
        new_tokens=count,
        response_characters=sum(map(len, texts)),
        tokenize_s=ready.tokenize_s,
        move_s=ready.move_s,
        decode_s=decode_s,
    )
    report = watch.complete(figures)
    recorder.say(end_line(report))
    return Generated(texts=texts, output=output, report=report)


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


TASK = "text-generation"


def pipeline(
    task: str = TASK,
    model: str | PreTrainedModel | None = None,
    *,
    debug: bool | Limits = False,
    warn_after_s: float = WARN_AFTER,
    **named: Any,  # noqa: ANN401 - they are transformers' own, of any type
) -> Pipeline:
    """Call ``transformers.pipeline``, and watch how the pipeline loads and generates.

    Example:
        >>> write = pipeline("text-generation", "./llama", device_map="auto")
        >>> write("Once upon a time", max_new_tokens=100)
        >>> write.last_report.tokens_per_second

    A text-generation pipeline is an instance of transformers' own class, and returns what that
    returns. One for another task, or of a class of your own, is watched only while it loads.

    Args:
        task: Of ``transformers.pipeline``.
        model: A folder, a name of the hub, or a model.
        debug: As in `generate`.
        warn_after_s: Seconds after which a generation that still runs is spoken of.
        **named: Of ``transformers.pipeline``.

    Raises:
        Exception: Whatever ``transformers.pipeline`` raises, unchanged.
    """
    import transformers

    recorder = current()
    is_ours = task == TASK and named.get("pipeline_class") is None
    if is_ours:
        from lightning_hangcheck.hooks.watched_pipeline import WatchedTextGeneration

        named["pipeline_class"] = WatchedTextGeneration
    make = partial(transformers.pipeline, task, model, **named)
    if not isinstance(model, str):
        made = make()
    else:
        arguments = {**named, **(named.get("model_kwargs") or {})}
        load = Load(name=model, loader=f"{task} pipeline", what="model", named=arguments)
        made = watched_load(recorder, load, make)
        attempt("a look at the model", partial(look_at_model, made.model, recorder))
        if made.tokenizer is not None:
            attempt("a look at the tokenizer", partial(look_at_tokenizer, made.tokenizer, recorder))
    if is_ours:
        made.limits, made.warn_after_s = limits_of(debug), warn_after_s
    return made
