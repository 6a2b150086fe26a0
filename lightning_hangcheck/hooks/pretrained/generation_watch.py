"""What goes around every call of ``model.generate``, from `generate` and from a pipeline alike."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.pretrained.amounts import several
from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.before_generation import doubts_before
from lightning_hangcheck.hooks.pretrained.generation_flags import doubtful_flags
from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory, gpu_memory, in_one_line
from lightning_hangcheck.hooks.pretrained.long_run import LongRun
from lightning_hangcheck.hooks.pretrained.placement import first_device, offloaded_places
from lightning_hangcheck.hooks.pretrained.token_beat import TokenBeat, with_beat
from lightning_hangcheck.recorder.sections import Section

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from transformers import PreTrainedModel

    from lightning_hangcheck.hooks.pretrained.generated import GenerationReport
    from lightning_hangcheck.recorder.recording import Recorder


class GenerationWatch:
    """Watches one generation: a section, a beat per token, warnings before and while it runs.

    Args:
        recorder: Of this process.
        model: That generates.
        warn_after_s: Seconds after which a running generation is spoken of.

    With ``HANGCHECK_DISABLE=1`` it only measures.
    """

    def __init__(self, recorder: Recorder, model: PreTrainedModel, warn_after_s: float) -> None:
        self._seconds = 0.0
        self._before: tuple[GpuMemory, ...] = ()
        self._after: tuple[GpuMemory, ...] = ()
        self._warnings: list[str] = []
        self._on = not recorder.settings.disable
        self._recorder = recorder
        self._model = model
        self._warn_after_s = warn_after_s
        self._beat = TokenBeat(recorder.heart.beat)
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
        self._before = self._memory()
        attempt("a look before generation", self._warn_before)
        section = Section(self._recorder, f"generate ({type(self._model).__name__})")
        with section, LongRun(self._warn_after_s, self._warn_long):
            yield
        self._after = self._memory()

    def arguments(self, named: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for ``generate`` with a beat per token among them; looks at the flags, too.

        Args:
            named: What the user gave.
            flags: The same with what a pipeline adds.
        """
        if not self._on:
            return dict(named)
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
        say = f"generate: first parameter on {device}; {in_one_line(self._before)}"
        self._recorder.say(say)
        for doubt in doubts_before(device.type, self._before, offloaded_places(self._model)):
            self._warn(doubt)

    def _warn_long(self) -> None:
        seconds, steps = time.perf_counter() - self._began, self._beat.steps
        pace = f"{several(steps, 'step')} so far, {steps / seconds:.2f} a second"
        self._warn(
            f"generation has run for {seconds:.0f} s ({pace}); "
            "a smaller max_new_tokens or max_time=SECONDS ends it sooner"
        )
