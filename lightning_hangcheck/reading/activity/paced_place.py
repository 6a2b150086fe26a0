"""Whether a rank stands where its page says it is, so that the pace learnt there holds.

A page tells the last thing that happened: after a step that is ``training_step`` until the next
one, whether the rank computes, loads, evaluates or saves meanwhile. Pauses between two steps teach
nothing of an evaluation that comes once an epoch. So where a page tells of a training loop, calls
must show that the rank is in what comes in every pass of that loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.reading.knowledge.frames import meanings
from lightning_hangcheck.reading.waits.torch_waits import bare_name

if TYPE_CHECKING:
    from collections.abc import Collection

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.evidence import Frame, Sample
    from lightning_hangcheck.model.naming.slugs import Phase

PASSES: dict[str, Phase] = {
    "training_step": "training_step",
    "validation_step": "validation",
    "test_step": "validation",
    "predict_step": "validation",
    "prediction_step": "validation",
}
"""What Lightning and transformers call once for each batch, around the user's own code."""
ONCE_A_STEP: tuple[Phase, ...] = ("backward", "optimizer_step")
STEP: tuple[Phase, ...] = ("training_step", *ONCE_A_STEP)
LOOPS: dict[Phase, tuple[Phase, ...]] = {
    **dict.fromkeys(STEP, STEP),
    "validation": ("validation",),
    "sanity_check": ("validation",),
    "dataloading": (),
}
"""By what the page says, what the calls must show. ``dataloading`` callbacks also say at the end of
an epoch; a loader is at work in evaluations too, and slow with its first batch."""


def in_paced_place(beat: Beat | None, sample: Sample) -> bool:
    """Whether the pace of what the page says is that of the place where the rank stands.

    Args:
        beat: Its page. Own beats, named steps and sections say where it is by themselves.
        sample: Of the rank.
    """
    if beat is None or beat.phase not in LOOPS:
        return True
    threads = sample.stack.threads if sample.stack is not None else ()
    shown = {_passed(frame) for frame in threads[0].frames} if threads else set()
    return bool(shown & set(LOOPS[beat.phase])) or _loads_for_step(beat, shown)


def _passed(frame: Frame) -> Phase | None:
    """The part of a pass that this call is, None where it is none that every pass has."""
    told = {rule.phase for rule in meanings(frame.function, frame.file)}
    part = PASSES.get(bare_name(frame.function))
    if part in told:
        return part
    return next((phase for phase in (*ONCE_A_STEP, "dataloading") if phase in told), None)


def _loads_for_step(beat: Beat, shown: Collection[Phase | None]) -> bool:
    """Whether it gets the batch of a step: a callback told which, and nothing since."""
    return beat.phase == "training_step" and beat.batch is not None and "dataloading" in shown
