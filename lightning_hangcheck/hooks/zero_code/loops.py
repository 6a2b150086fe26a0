"""What is watched of torch, Lightning, transformers, wandb and others, and by what.

A row more in `SECTIONS` watches one call more. A plain loop, DDP, FSDP, Fabric and accelerate all
step torch's optimizers, whose hooks report each step. If a callback or the script itself reports
steps, only those count. Learning-rate schedulers and the gradient scaler only show that the loop is
alive; the scaler skips an optimizer's step if its gradients overflowed. Lightning's Trainer calls a
callback of ours that is not in its list; Hugging Face's Trainer gets one in its list.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import cache, partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lightning_hangcheck.hooks.being_watched import passed, passing
from lightning_hangcheck.hooks.callbacks import (
    OUR_HOOKS,
    HangCheck,
    HuggingFaceHangCheck,
    instrument_saves,
    watch_resuming,
    watch_saves,
)
from lightning_hangcheck.hooks.state_report import tell_start
from lightning_hangcheck.hooks.zero_code.groups import instrument_leaving
from lightning_hangcheck.hooks.zero_code.wrapping import (
    Call,
    in_section,
    modules_of,
    on_import,
    switched_off,
    wrap,
)
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.session.session import spawned_as

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType, ModuleType

_C10D = "torch.distributed.distributed_c10d"
_FSDP = "torch.distributed.fsdp"
_SAVER = "torch.distributed.checkpoint.state_dict_saver"
_CONNECTOR = "LIGHTNING.trainer.connectors.accelerator_connector"
_HF_TRAINER, _ACCELERATOR = "transformers.trainer", "accelerate.accelerator"
_guests: WeakKeyDictionary[Any, HangCheck | None] = WeakKeyDictionary()
"""Our callback of each Trainer; None if the user has added one."""


class StepTeller:
    """Shows each step on the page of this process; its methods are hooks."""

    # A step ends when an optimizer steps for the second time: two optimizers in turn, or one per
    # layer, make one step. A compiler that traces a call instead of running it must find nothing.

    def __init__(self, compiling: Callable[[], bool]) -> None:
        self._compiling = compiling
        self._recorder = current()
        self._beats = self._recorder.beats
        self._others_report = False
        self._steps = 0
        self._in_step: set[int] = set()
        self.scheduled = False

    def on_optimizer_step(self, optimizer: object, *_: object) -> None:
        """An optimizer has stepped: backward is over, and the loop continues."""
        try:
            if self._compiling():
                return
            page = self._recorder.page
            if page.went_on and self._others_report:
                return  # until the next pulse
            if page.ending == "raised":
                self._recorder.mark_going_on()
            if self._others_report:
                page.go_on()
                return
            reported, in_step, key = self._steps or None, self._in_step, id(optimizer)
            if key in in_step or not in_step:
                in_step.clear()
                self._steps += 1
            in_step.add(key)
            if page.step == reported or page.step is None:
                page.enter_phase("training_step", None, self._steps, beats=not self._beats.count)
            else:  # a callback reports the steps
                self._others_report = True
            if self._steps == 1:
                tell_start()
        except Exception as error:  # noqa: BLE001 - the hooks' boundary: training must go on
            switched_off("showing an optimizer's step failed", error, "; training goes on")

    def on_schedule(self, *_: object) -> None:
        """A scheduler set the learning rate; the first time is when it is created."""
        self.scheduled = True
        self.on_loop()

    def on_loop(self, *_: object) -> None:
        """The loop is alive, whether or not an optimizer stepped."""
        if self._steps:
            self._recorder.page.go_on()


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
    for name, function, kind, title, then in SECTIONS:
        if module.__name__ in modules_of(name):
            owner, _, method = function.rpartition(".")
            section = in_section(kind, title, then=then) if kind else None
            after = None if kind else then
            wrap(getattr(module, owner) if owner else module, method, section, after=after)


def instrument_first_batch(module: ModuleType) -> None:
    """Watch the first batch of a DataLoader."""
    iterator = module._BaseDataLoaderIter  # noqa: SLF001 - what every iterator derives from
    plain = iterator.__next__

    def leave(_: Call) -> None:
        """Later batches must not pay for it; a patch that somebody put above ours stays."""
        if iterator.__next__ is ours:
            iterator.__next__ = plain

    wrap(iterator, "__next__", in_section("first batch of a DataLoader", then=leave))
    ours = iterator.__next__


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


def instrument_trainer(module: ModuleType) -> None:
    """Watch the stages of Lightning's Trainer."""

    @contextmanager
    def staged(call: Call) -> Iterator[None]:
        if call.given().get("datamodule") is not None:
            passed(7)
        yield

    for name in ("fit", "validate", "test", "predict"):
        then = passing(12) if name == "fit" else None
        wrap(module.Trainer, name, in_section(f"Trainer.{name}", then=then, around=staged))
    watch_saves(module.Trainer)


def _trainer_made(call: Call) -> None:
    """If no launcher started this process and the Trainer starts none, it is the only rank."""
    # A strategy without launcher runs in this process (Lightning 2.0 to 2.6). A strategy with a
    # launcher knows the number of ranks only once it has started them.
    trainer, identity = call.instance, current().identity
    launched = identity.launcher != "none" or identity.world_size is not None
    starts = launched or spawned_as() or trainer.strategy.launcher is not None
    if not starts and trainer.num_devices * trainer.num_nodes == 1:
        current().learn_identity(0, 1, 0)
    passed(11)


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

    def call_ours(
        hook: str, _: FrameType, given: tuple[Any, ...], _named: Mapping[str, Any]
    ) -> None:
        trainer, *more = given
        ours = _ours_of(trainer, hook)
        if ours is not None:
            getattr(ours, hook)(trainer, trainer.lightning_module, *more)

    OUR_HOOKS[module.__name__.partition(".trainer.")[0]] = module, call_theirs
    module._call_callback_hooks = call_hooks  # type: ignore[attr-defined] # noqa: SLF001 - as above
    for hook in ("on_save_checkpoint", "on_load_checkpoint"):
        wrap(module, f"_call_callbacks_{hook}", before=partial(call_ours, hook))


def _ours_of(trainer: Any, hook: str) -> HangCheck | None:  # noqa: ANN401 - a guest's
    ours: Any = _guests.get(trainer, False)
    if hook == "setup" or ours is False:
        theirs = any(isinstance(callback, HangCheck) for callback in trainer.callbacks)
        ours = _guests[trainer] = (
            None if theirs else ours or attempt("watching a Trainer's hooks", HangCheck)
        )
    return ours  # type: ignore[no-any-return] # one of both


def _fabric_launched(call: Call) -> None:
    """Fabric has started; the stack tells which part of a step the script is in."""
    fabric = call.instance
    current().learn_identity(fabric.global_rank, fabric.world_size, fabric.local_rank)


def instrument_huggingface(module: ModuleType) -> None:
    """Watch how transformers' Trainer saves and resumes."""
    watch_saves(module.Trainer)
    watch_resuming(module.Trainer)


def _huggingfaces_made(call: Call) -> None:
    handler = call.instance.callback_handler
    if not any(isinstance(callback, HuggingFaceHangCheck) for callback in handler.callbacks):
        handler.add_callback(HuggingFaceHangCheck())
    passed(11)


WATCHED: tuple[tuple[str, str | Callable[[ModuleType], None]], ...] = (
    (_C10D, instrument_leaving),
    ("torch.optim.optimizer", instrument_optimizers),
    ("torch.optim.lr_scheduler", instrument_loop),
    ("torch.amp.grad_scaler", instrument_loop),
    (f"{_FSDP}.fully_sharded_data_parallel", instrument_sharding),
    (f"{_FSDP}._fully_shard._fully_shard", instrument_sharding),
    ("torch.serialization", instrument_saves),
    ("torch.utils.data.dataloader", instrument_first_batch),
    ("transformers.generation.utils", "generating.instrument_generation"),
    ("transformers.generation.configuration_utils", "loading.instrument_loading"),
    ("transformers.modeling_utils", "loading.instrument_loading"),
    ("transformers.tokenization_utils_base", "loading.instrument_loading"),
    ("transformers.models.auto.modeling_auto", "loading.instrument_loading"),
    ("transformers.models.auto.tokenization_auto", "loading.instrument_loading"),
    ("transformers.models.auto.processing_auto", "loading.instrument_loading"),
    (_HF_TRAINER, instrument_huggingface),
    ("LIGHTNING.trainer.trainer", instrument_trainer),
    ("LIGHTNING.trainer.call", instrument_hooks),
)
"""Modules, and what wraps each once it is imported: a function of hooks, or its file and name."""
SECTIONS: tuple[tuple[str, str, str, str, Callable[[Call], None] | None], ...] = (
    (_C10D, "barrier", "dist.barrier", "", None),
    (_C10D, "monitored_barrier", "dist.barrier", "", None),
    ("torch.serialization", "load", "loading", "torch.load of a checkpoint", None),
    (_SAVER, "save", "saving", "torch.distributed save of a checkpoint", None),
    # a save in the background counts at once
    (_SAVER, "async_save", "saving", "torch.distributed async_save of a checkpoint", None),
    ("torch.utils.data.dataloader", "DataLoader.__init__", "DataLoader constructor", "", None),
    ("datasets.load", "load_dataset", "dataset", "datasets.load_dataset", None),
    ("datasets.load", "load_from_disk", "dataset", "datasets.load_from_disk", None),
    ("wandb.sdk.wandb_init", "init", "wandb.init", "", None),
    ("wandb.sdk.wandb_run", "finish", "wandb.finish", "", None),
    ("wandb.sdk.wandb_run", "Run.finish", "wandb.finish", "", None),
    ("LIGHTNING.trainer.trainer", "Trainer.__init__", "Trainer constructor", "", _trainer_made),
    (_CONNECTOR, "_AcceleratorConnector.__init__", "", "", passing(8)),
    ("LIGHTNING.loggers.wandb", "WandbLogger.__init__", "WandbLogger constructor", "", passing(9)),
    ("FABRIC.fabric", "Fabric.__init__", "Fabric constructor", "", passing(8)),
    ("FABRIC.fabric", "Fabric.launch", "Fabric.launch", "", _fabric_launched),
    *(("FABRIC.fabric", f"Fabric.{name}", "Fabric setup", f"Fabric.{name}", None)
      for name in ("setup", "setup_module", "setup_optimizers", "setup_dataloaders")),
    ("FABRIC.fabric", "Fabric.barrier", "Fabric.barrier", "", None),
    ("FABRIC.fabric", "Fabric.save", "saving", "Fabric.save of a checkpoint", None),
    ("FABRIC.fabric", "Fabric.load", "loading", "Fabric.load of a checkpoint", None),
    ("transformers.pipelines.base", "Pipeline.__call__", "transformers.pipeline", "", None),
    (_HF_TRAINER, "Trainer.__init__", "Trainer constructor", "", _huggingfaces_made),
    (_HF_TRAINER, "Trainer.train", "Trainer.train", "", passing(12)),
    (_HF_TRAINER, "Trainer.evaluate", "Trainer.evaluate", "", None),
    (_HF_TRAINER, "Trainer.predict", "Trainer.predict", "", None),
    (_HF_TRAINER, "Trainer.save_model", "saving", "Trainer.save_model of a checkpoint", None),
    (_ACCELERATOR, "Accelerator.__init__", "Accelerator constructor", "", passing(8)),
    (_ACCELERATOR, "Accelerator.save_state", "saving", "Accelerator.save_state of a checkpoint",
     None),
    (_ACCELERATOR, "Accelerator.wait_for_everyone", "Accelerator.wait_for_everyone", "", None),
)  # fmt: skip
"""Calls that are sections: module, function, kind (also the name unless a title follows; empty for
a call that is none), and what is done after it, such as reporting the checkpoint that it proves."""


@cache
def watch_ranks() -> None:
    """Wrap everything in the tables once it is imported, or now if it is imported already."""
    for module, ours in WATCHED:
        on_import(module, ours)
    for module in dict.fromkeys(row[0] for row in SECTIONS):
        on_import(module, instrument_sections)
