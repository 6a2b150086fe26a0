"""`generate`: from prompts to texts, each step timed, and the tokens counted that it added."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generated import (
    Generated,
    GenerationReport,
    end_line,
    prompts_in_words,
)
from lightning_hangcheck.hooks.pretrained.generation.generation_watch import GenerationWatch
from lightning_hangcheck.hooks.pretrained.generation.prompts import prepare
from lightning_hangcheck.hooks.pretrained.generation.token_limits import (
    Limits,
    asked_new_tokens,
    beyond,
    capped,
    cut_in_words,
    limits_of,
)
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

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
