"""A text-generation pipeline that says how each step goes. Importing this imports transformers."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from transformers import TextGenerationPipeline

from lightning_hangcheck.hooks.generating import (
    WARN_AFTER,
    GenerationReport,
    GenerationWatch,
    Limits,
    answers_in,
    asked_new_tokens,
    count_tokens,
    end_line,
    prompts_in_words,
)
from lightning_hangcheck.hooks.never_raise import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.text.shown import several

Values = Any  # what a pipeline hands from step to step


class WatchedTextGeneration(TextGenerationPipeline):  # type: ignore[misc]  # its types are unknown
    """Transformers' own pipeline, with its steps timed, counted and said.

    Attributes:
        limits: Of a debug run.
        warn_after_s: Seconds after which a generation that still runs is spoken of.
        last_report: Of the last batch; None before the first.
    """

    limits: Limits | None = None
    warn_after_s: float = WARN_AFTER
    last_report: GenerationReport | None = None
    _tokenize_s = 0.0
    _truncated = 0
    _characters: int | None = 0

    def preprocess(self, prompt_text: Values, **named: Values) -> Values:
        """Tokenize one prompt; cut it to the limit of a debug run."""
        began = time.perf_counter()
        inputs = super().preprocess(prompt_text, **named)
        limits = self.limits
        if limits is not None and inputs["input_ids"].shape[-1] > limits.max_length:
            self._truncated += 1
            shorter = limits.say_cut(1, self.tokenizer)
            inputs = super().preprocess(prompt_text, **{**named, **shorter})
        self._tokenize_s += time.perf_counter() - began
        known = self._characters if isinstance(prompt_text, str) else None
        self._characters = None if known is None else known + len(prompt_text)
        return inputs

    def forward(self, model_inputs: Values, **named: Values) -> Values:
        """Move a batch to the model, generate, and bring the result back."""
        began = time.perf_counter()
        outputs = super().forward(model_inputs, **named)
        attempt("the report", self._end_report, time.perf_counter() - began)
        return outputs

    def _forward(self, model_inputs: Values, **named: Values) -> Values:
        width, mask = model_inputs["input_ids"].shape[1], model_inputs.get("attention_mask")
        prepare = getattr(self, "_prepare_generate_kwargs", None)  # transformers 5
        if prepare is not None:
            flags = dict(prepare(dict(named)))
        else:
            flags = {"generation_config": self.generation_config, **named}
        wanted = asked_new_tokens(self.model.generation_config, flags, width)
        capped = self.limits.cap(named, wanted) if self.limits is not None else None
        named = named if capped is None else capped
        tokens = width if mask is None else int(mask.sum())
        most = asked_new_tokens(self.model.generation_config, {**flags, **named}, width)
        number = len(model_inputs["input_ids"])
        goes_in = prompts_in_words(number, tokens, characters=self._characters, new_tokens=most)
        watch = GenerationWatch(current(), self.model, self.warn_after_s, goes_in)
        with watch.around():
            outputs = super()._forward(model_inputs, **watch.arguments(named, flags))
        made = outputs["generated_sequence"].flatten(0, 1)[:, width:]
        self.last_report = watch.complete(
            GenerationReport(
                prompts=len(outputs["generated_sequence"]),
                prompt_tokens=tokens,
                prompt_characters=self._characters,
                max_new_tokens=most,
                truncated_prompts=self._truncated,
                new_tokens=attempt("counting tokens", count_tokens, self.model, made) or 0,
                max_new_tokens_cut=None if capped is None else wanted,
                tokenize_s=self._tokenize_s,
            )
        )
        self._tokenize_s, self._truncated, self._characters = 0.0, 0, 0
        return outputs

    def postprocess(self, model_outputs: Values, *arguments: Values, **named: Values) -> Values:
        """Turn the tokens of one prompt into text."""
        began = time.perf_counter()
        records = super().postprocess(model_outputs, *arguments, **named)
        seconds = time.perf_counter() - began
        attempt("the report", self._add_decoding, seconds, model_outputs, records)
        return records

    def _end_report(self, forward_s: float) -> None:
        if self.last_report is not None:
            move_s = max(0.0, forward_s - self.last_report.generate_s)
            self.last_report = msgspec.structs.replace(self.last_report, move_s=move_s)
            current().say(end_line(self.last_report))

    def _add_decoding(self, seconds: float, outputs: Values, records: Values) -> None:
        report, prompt = self.last_report, outputs.get("prompt_text")
        if report is None:
            return
        said, read = f"generate: decoded ({seconds:.3f}s)", report.response_characters
        if isinstance(prompt, str):
            characters = sum(map(len, answers_in(records, prompt)))
            said, read = f"{said}, {several(characters, 'character')}", (read or 0) + characters
        decode_s = report.decode_s + seconds
        self.last_report = msgspec.structs.replace(
            report, decode_s=decode_s, response_characters=read
        )
        current().say(said)
