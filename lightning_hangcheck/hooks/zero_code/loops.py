"""What a loop of any kind does: optimizers' steps, data, FSDP's offloading, experiment records.

A plain loop, DDP, FSDP, Fabric and accelerate all step torch's optimizers, whose own hooks tell
each step: their ranks have a step, a phase and a pace without a changed line. Where a callback or
the script itself tells its steps, theirs count and ours add none. Learning-rate schedulers and the
gradient scaler, which passes over the step of an optimizer whose gradients overflowed, only say
that the loop goes on.
"""

from __future__ import annotations

import inspect
import os
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

from lightning_hangcheck.hooks.never_raise import guard_hooks
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.start import passed
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    afterwards,
    by_name,
    in_section,
    unwrap,
    wrap,
)
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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
    return StepTeller(getattr(compiler, "is_compiling", bool))


def has_scheduler() -> bool:
    """Whether this process made a scheduler of the learning rate, as far as it was watched."""
    return _teller().scheduled


def instrument_optimizers(module: ModuleType) -> None:
    """Have the steps of all optimizers told; ``module`` is ``torch.optim.optimizer``."""
    module.register_optimizer_step_post_hook(_teller().on_optimizer_step)


def instrument_loop(module: ModuleType) -> None:
    """Watch schedulers' steps or the scaler's updates; ``module`` is torch's of either."""
    for owner in [one for one in vars(module).values() if isinstance(one, type)]:
        is_scaler = owner.__name__ == "GradScaler"
        name, act = ("update", _teller().on_loop) if is_scaler else ("step", _teller().on_schedule)
        if owner.__module__ == module.__name__ and name in vars(owner):
            wrap(owner, name, after=act)


def instrument_data_loading(module: ModuleType) -> None:
    """Watch ``DataLoader``, or ``load_dataset`` and ``load_from_disk`` of datasets."""
    for name in ("load_dataset", "load_from_disk"):
        wrap(module, name, in_section("dataset", f"datasets.{name}"))
    if not hasattr(module, "DataLoader"):
        return
    wrap(module.DataLoader, "__init__", in_section("DataLoader constructor"))
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    # a step must not pay for what only its first batch can tell, so the watcher goes with that
    first = in_section("first batch of a DataLoader", then=lambda _: unwrap(iterator, "__next__"))
    wrap(iterator, "__next__", first)


def instrument_sharding(module: ModuleType) -> None:
    """Watch ``FullyShardedDataParallel`` or ``fully_shard``: what they keep in main memory."""
    owner, name = module, "fully_shard"
    if hasattr(module, "FullyShardedDataParallel"):
        owner, name = module.FullyShardedDataParallel, "__init__"
    signature = inspect.signature(getattr(owner, name))

    def note(call: Call) -> None:
        what = offload_asked_for(by_name(call, signature))
        if what:
            from lightning_hangcheck.hooks.models import tell_offloaded

            tell_offloaded(what, current())

    wrap(owner, name, afterwards(note))


def offload_asked_for(given: Mapping[str, Any]) -> str:
    """Say what the arguments of FSDP offload; empty where nothing is.

    Args:
        given: ``cpu_offload=CPUOffload(offload_params=True)`` of FSDP 1,
            ``offload_policy=CPUOffloadPolicy()`` of FSDP 2, and others.
    """
    first = getattr(given.get("cpu_offload"), "offload_params", False)
    second = type(given.get("offload_policy")).__name__ == "CPUOffloadPolicy"
    if not (first or second):
        return ""
    by = "cpu_offload" if first else "offload_policy"
    return f"parameters on cpu between their uses (FSDP, {by})"


def instrument_experiments(module: ModuleType) -> None:
    """Watch Lightning's WandbLogger, or what this module of wandb has."""
    if hasattr(module, "WandbLogger"):
        made = in_section("WandbLogger constructor", then=lambda _: passed(9))
        wrap(module.WandbLogger, "__init__", made)
    wrap(module, "init", in_section("wandb.init", then=_note_experiment))
    finished = in_section("wandb.finish")
    wrap(module, "finish", finished)
    if hasattr(module, "Run"):
        wrap(module.Run, "finish", finished)


def _note_experiment(call: Call) -> None:
    """Say where an alert of this run would go; one that is disabled is nowhere."""
    from lightning_hangcheck.session.experiments import Experiment, note_experiment

    recorder, run = current(), call.result
    if recorder.session is None or run is None or run.disabled:
        return
    made = Experiment(
        entity=run.entity,
        project=run.project,
        run_id=run.id,
        server=run.settings.base_url,
        offline=bool(run.offline),
        rank=recorder.identity.rank,
    )
    note_experiment(recorder.session, os.getpid(), made)
