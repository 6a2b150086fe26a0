"""What goes around every call of ``model.generate``, from `generate` and from a pipeline alike.

Before it begins, what may make it slow or fail is said. A stopping criterion that never stops
anything gives a beat for each token.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from lightning_hangcheck.hooks.pretrained.attempt import attempt
from lightning_hangcheck.hooks.pretrained.generation.generated import LongRun
from lightning_hangcheck.hooks.pretrained.generation_flags import doubtful_flags
from lightning_hangcheck.hooks.pretrained.gpu_memory import GpuMemory, gpu_memory, in_one_line
from lightning_hangcheck.hooks.pretrained.placement import first_device, offloaded_places
from lightning_hangcheck.recorder.sections import Section
from lightning_hangcheck.text.amounts import several

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from lightning_hangcheck.hooks.pretrained.generation.generated import GenerationReport
    from lightning_hangcheck.recorder.lifecycle import Recorder

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
