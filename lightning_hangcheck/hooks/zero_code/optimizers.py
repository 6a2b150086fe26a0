"""Steps of any training loop, told by torch's own hooks around every optimizer's step.

A plain loop, DDP, FSDP, Fabric and accelerate all come through there, so their ranks have a step, a
phase and a pace without a changed line. Where a callback or the script itself tells its steps,
theirs count and ours add none. Learning-rate schedulers and the gradient scaler, which passes over
the step of an optimizer whose gradients overflowed, only say that the loop goes on.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.never_raise import guard_hooks
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.wrapping import act_after
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


@guard_hooks
class StepTeller:
    """Tells the page of this process each step; its methods are hooks.

    A step of the loop is over when an optimizer steps that has stepped in it already: two
    optimizers in turns, or one for each layer, are one step.

    Args:
        compiling: Whether a compiler reads the call instead of running it; it must find nothing.

    Attributes:
        scheduled: A scheduler of the learning rate was made.
    """

    def __init__(self, compiling: Callable[[], bool]) -> None:
        self._compiling = compiling
        self._recorder = current()
        self._told: int | None = None
        self._others_tell = False
        self._steps = 0
        self._in_step: set[int] = set()
        self.scheduled = False

    def on_optimizer_step(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped: backward is over, and the loop goes on."""
        if self._compiling():
            return
        if id(optimizer) in self._in_step or not self._in_step:
            self._in_step.clear()
            self._steps += 1
        self._in_step.add(id(optimizer))
        if self._steps == 1:
            tell_start()
        page = self._recorder.page
        if page.ending == "raised":
            self._recorder.mark_going_on()
        self._others_tell = self._others_tell or page.step not in (None, self._told)
        if self._others_tell:  # a callback
            page.show_phase(page.phase)
            return
        beats = not self._recorder.beats_by_hand
        page.enter_phase("training_step", None, self._steps, beats=beats)
        self._told = self._steps

    def on_schedule(self) -> None:
        """A scheduler set the learning rate, which it does first when it is made."""
        self.scheduled = True
        self.on_loop()

    def on_loop(self) -> None:
        """The loop goes on, whether or not an optimizer stepped."""
        if self._steps:
            self._recorder.page.show_phase(self._recorder.page.phase)


@cache
def _teller() -> StepTeller:
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # absent before torch 2.1
    return StepTeller(getattr(compiler, "is_compiling", _runs))


def _runs() -> bool:
    return False


def instrument_optimizers(module: ModuleType) -> None:
    """Have the steps of all optimizers told; ``module`` is ``torch.optim.optimizer``."""
    module.register_optimizer_step_post_hook(_teller().on_optimizer_step)


def instrument_loop(module: ModuleType) -> None:
    """Watch schedulers' steps or the scaler's updates; ``module`` is torch's of either."""
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        is_scaler = owner.__name__ == "GradScaler"
        name, act = ("update", _teller().on_loop) if is_scaler else ("step", _teller().on_schedule)
        if owner.__module__ == module.__name__ and name in vars(owner):
            act_after(owner, name, act)


def has_scheduler() -> bool:
    """Whether this process made a scheduler of the learning rate, as far as it was watched."""
    return _teller().scheduled
