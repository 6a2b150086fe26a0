"""Watches loops and Trainers of any kind: steps, data, saves, stages, experiment loggers.

A plain loop, DDP, FSDP, Fabric and accelerate all step torch's optimizers, whose hooks report each
step. If a callback or the script itself reports steps, only those count. Learning-rate schedulers
and the gradient scaler only show that the loop is alive; the scaler skips an optimizer's step if
its gradients overflowed. Lightning's Trainer calls a callback of ours that is not in its list;
Hugging Face's Trainer gets one in its list.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lightning_hangcheck.hooks.callbacks import (
    HangCheck,
    HuggingFaceHangCheck,
    watch_resuming,
    watch_saves,
)
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.start import passed, passing
from lightning_hangcheck.hooks.zero_code.watched_calls import SECTIONS, modules_of
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    guard_hooks,
    in_section,
    unwrap,
    wrap,
)
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.session import spawned_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType, ModuleType

    from lightning_hangcheck.hooks.zero_code.wrapping import Before


_guests: WeakKeyDictionary[Any, HangCheck | None] = WeakKeyDictionary()
"""Our callback of each Trainer; None if the user has added one."""


@guard_hooks
class StepTeller:
    """Shows each step on the page of this process; its methods are hooks."""

    # A step ends when an optimizer steps for the second time: two optimizers in turn, or one per
    # layer, make one step. A compiler that traces a call instead of running it must find nothing.

    def __init__(self, compiling: Callable[[], bool]) -> None:
        self._compiling = compiling
        self._recorder = current()
        self._reported: int | None = None
        self._others_report = False
        self._steps = 0
        self._in_step: set[int] = set()
        self.scheduled = False

    def on_optimizer_step(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped: backward is over, and the loop continues."""
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
        self._others_report = self._others_report or page.step not in (None, self._reported)
        if self._others_report:  # a callback reports the steps
            page.show_phase(page.phase)
            return
        beats = not self._recorder.beats_by_hand
        page.enter_phase("training_step", None, self._steps, beats=beats)
        self._reported = self._steps

    def on_schedule(self, *_: object) -> None:
        """A scheduler set the learning rate; the first time is when it is created."""
        self.scheduled = True
        self.on_loop()

    def on_loop(self, *_: object) -> None:
        """The loop is alive, whether or not an optimizer stepped."""
        if self._steps:
            self._recorder.page.show_phase(self._recorder.page.phase)


@cache
def teller() -> StepTeller:
    """Return this process's `StepTeller`."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)  # absent before torch 2.1
    return StepTeller(getattr(compiler, "is_compiling", bool))


def instrument_optimizers(module: ModuleType) -> None:
    """Watch the steps of all optimizers; ``module`` is ``torch.optim.optimizer``."""
    module.register_optimizer_step_post_hook(teller().on_optimizer_step)


def instrument_loop(module: ModuleType) -> None:
    """Watch schedulers' steps or the scaler's updates; ``module`` is torch's module of either."""
    for owner in [var for var in vars(module).values() if isinstance(var, type)]:
        is_scaler = owner.__name__ == "GradScaler"
        name, act = ("update", teller().on_loop) if is_scaler else ("step", teller().on_schedule)
        if owner.__module__ == module.__name__ and name in vars(owner):
            wrap(owner, name, after=act)


def instrument_sections(module: ModuleType) -> None:
    """Make sections of this module's calls in the table."""
    for name, function, kind, title, number in SECTIONS:
        if module.__name__ in modules_of(name):
            owner, _, method = function.rpartition(".")
            section = in_section(kind, title, then=number and passing(number))
            wrap(getattr(module, owner) if owner else module, method, section)


def instrument_first_batch(module: ModuleType) -> None:
    """Watch the first batch of a DataLoader."""
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    # only the first batch is watched: later steps must not pay for it
    first = in_section("first batch of a DataLoader", then=lambda _: unwrap(iterator, "__next__"))
    wrap(iterator, "__next__", first)


def instrument_sharding(module: ModuleType) -> None:
    """Watch ``FullyShardedDataParallel`` or ``fully_shard``: what they keep in main memory."""

    def note(call: Call) -> None:
        what = offload_asked_for(call.given())
        if what:
            from lightning_hangcheck.hooks.models import tell_offloaded

            tell_offloaded(what, current())

    first = getattr(module, "FullyShardedDataParallel", None)
    wrap(first or module, "__init__" if first else "fully_shard", after=note)


def offload_asked_for(given: Mapping[str, Any]) -> str:
    """Say what the arguments of FSDP 1 or 2 offload; empty if nothing."""
    first = getattr(given.get("cpu_offload"), "offload_params", False)
    second = type(given.get("offload_policy")).__name__ == "CPUOffloadPolicy"
    by = "cpu_offload" if first else "offload_policy"
    return f"parameters on cpu between their uses (FSDP, {by})" if first or second else ""


def instrument_connector(module: ModuleType) -> None:
    """Watch the connector with which Lightning's Trainer chooses an accelerator."""
    wrap(module._AcceleratorConnector, "__init__", after=passing(8))  # noqa: SLF001 - no other door


def instrument_trainer(module: ModuleType) -> None:
    """Watch Lightning's Trainer."""

    def made(call: Call) -> None:
        """If no launcher started this process and the Trainer starts none, it is the only rank."""
        # A strategy without launcher runs in this process (Lightning 2.0 to 2.6). A strategy with a
        # launcher knows the number of ranks only once it has started them.
        trainer, identity = call.instance, current().identity
        launched = identity.launcher != "none" or identity.world_size is not None
        starts = launched or spawned_as() or trainer.strategy.launcher is not None
        if not starts and trainer.num_devices * trainer.num_nodes == 1:
            current().learn_identity(0, 1, 0)
        passed(11)

    @contextmanager
    def staged(call: Call) -> Iterator[None]:
        if call.given().get("datamodule") is not None:
            passed(7)
        yield

    wrap(module.Trainer, "__init__", in_section("Trainer constructor", then=made))
    for name in ("fit", "validate", "test", "predict"):
        then = passing(12) if name == "fit" else None
        wrap(module.Trainer, name, in_section(f"Trainer.{name}", then=then, around=staged))
    watch_saves(module.Trainer)


def instrument_hooks(module: ModuleType) -> None:
    """Have Lightning call our callback's hooks before those of the Trainer's callbacks."""
    # The Trainer's list stays as the user made it: scripts read, count and compare it.
    call_theirs = module._call_callback_hooks  # noqa: SLF001 - there is no other door

    # half a microsecond if we have no such hook; `wrap` would take two
    @wraps(call_theirs)
    def call_hooks(trainer: Any, hook_name: str, *given: Any, **named: Any) -> None:  # noqa: ANN401 - a guest's
        ours = getattr(_ours_of(trainer, hook_name), hook_name, None)
        # Lightning calls epoch-end hooks twice, the second time for callbacks that save
        if ours is not None and not named.get("monitoring_callbacks"):
            rest = {name: named[name] for name in named if name != "monitoring_callbacks"}
            ours(trainer, trainer.lightning_module, *given, **rest)
        call_theirs(trainer, hook_name, *given, **named)

    module._call_callback_hooks = call_hooks  # type: ignore[attr-defined] # noqa: SLF001 - as above

    def calling_ours(hook: str) -> Before:
        def call_ours(_: FrameType, arguments: tuple[Any, ...], _named: Mapping[str, Any]) -> None:
            trainer, *given = arguments
            ours = _ours_of(trainer, hook)
            if ours is not None:
                getattr(ours, hook)(trainer, trainer.lightning_module, *given)

        return call_ours

    for hook in ("on_save_checkpoint", "on_load_checkpoint"):
        wrap(module, f"_call_callbacks_{hook}", before=calling_ours(hook))


def _ours_of(trainer: Any, hook: str) -> HangCheck | None:  # noqa: ANN401 - a guest's
    ours: Any = _guests.get(trainer, False)
    if hook == "setup" or ours is False:
        theirs = any(isinstance(callback, HangCheck) for callback in trainer.callbacks)
        ours = _guests[trainer] = (
            None if theirs else ours or attempt("watching a Trainer's hooks", HangCheck)
        )
    return ours  # type: ignore[no-any-return] # one of both


def instrument_fabric(module: ModuleType) -> None:
    """Watch how Fabric starts; the stack tells which part of a step the script is in."""

    def launched(call: Call) -> None:
        fabric = call.instance
        current().learn_identity(fabric.global_rank, fabric.world_size, fabric.local_rank)

    wrap(module.Fabric, "launch", in_section("Fabric.launch", then=launched))


def instrument_huggingface(module: ModuleType) -> None:
    """Watch transformers' Trainer."""

    def made(call: Call) -> None:
        handler = call.instance.callback_handler
        if not any(isinstance(callback, HuggingFaceHangCheck) for callback in handler.callbacks):
            handler.add_callback(HuggingFaceHangCheck())
        passed(11)

    wrap(module.Trainer, "__init__", in_section("Trainer constructor", then=made))
    watch_saves(module.Trainer)
    watch_resuming(module.Trainer)
