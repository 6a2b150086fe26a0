"""What a watched generation returns: the texts, what the model gave, and the figures.

`LongRun` warns from a thread of its own while one still runs.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.pretrained import gpu_memory
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory
from lightning_hangcheck.text.amounts import seconds_in_words, several

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

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
    memory = gpu_memory.in_one_line(report.memory_after)
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
