"""The Lightning callback: each hook tells the page where training is, and does nothing else."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from lightning_hangcheck import log
from lightning_hangcheck.hooks.being_watched import be_watched, tell_of_nodes
from lightning_hangcheck.hooks.callbacks.hook_guard import guard_hooks, switch_off
from lightning_hangcheck.hooks.callbacks.lightning_package import lightning_packages
from lightning_hangcheck.hooks.callbacks.step_clock import StepClock
from lightning_hangcheck.hooks.checkpoints.resuming import of_lightning, tell
from lightning_hangcheck.hooks.zero_code.files import watch_saves
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning.pytorch import LightningModule, Trainer

    from lightning_hangcheck.hooks.callbacks.logged_metrics import LoggedMetrics
    from lightning_hangcheck.model.naming.slugs import Phase
    from lightning_hangcheck.recorder.lifecycle import Recorder


@guard_hooks
class HangCheck:
    """Shows where in training each rank is, and has the node watched.

    Works with ``Trainer`` of ``lightning.pytorch`` and of ``pytorch_lightning``, in ``fit``,
    ``validate``, ``test`` and ``predict``, with any logger or none. It runs no collective, touches
    no tensor and never raises: a hook that fails is switched off and said once.

    Without ``hangcheck run`` it starts one watching process a node, which ends with the job.

    Example:
        >>> import lightning_hangcheck as hc
        >>> trainer = Trainer(callbacks=[hc.HangCheck()])

    An instance is a ``Callback`` of each Lightning package that is imported by then.

    Args:
        log_metrics: Let rank 0 send ``hangcheck/state``, ``hangcheck/step_time``,
            ``hangcheck/slowest_rank`` and ``hangcheck/straggler_ratio`` through the Trainer's
            loggers, every ``log_every_n_steps``; of the ranks of its own node.

    Attributes:
        asked: The class that was called; an instance's own is derived from it when it is made.
    """

    asked: type[HangCheck]

    def __new__(cls, *, log_metrics: bool = False) -> HangCheck:
        """Make an instance of a class that Lightning takes for one of its own."""
        asked: type = cls
        callbacks = tuple(package.Callback for package in lightning_packages())
        return object.__new__(_callback_class(asked, callbacks))

    def __init__(self, *, log_metrics: bool = False) -> None:
        self._log_metrics = log_metrics
        self._metrics: LoggedMetrics | None = None
        self._clock = StepClock()
        self._recorder = current()
        be_watched(self._recorder)

    def __reduce__(self) -> tuple[Callable[[type, bool], object], tuple[type, bool]]:
        """Pickling (``ddp_spawn``) and copying make a blank one, which `setup` brings to life."""
        return _revive, (self.asked, self._log_metrics)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Learn who this rank is, which under ``ddp_spawn`` nothing told before."""
        first = next((one for one in trainer.callbacks if isinstance(one, HangCheck)), self)
        if first is not self:
            switch_off(self)
            log.once("callback-twice", "HangCheck was added twice; the second one does nothing")
            return
        self._clock = StepClock()
        self._recorder = recorder = current()
        recorder.learn_identity(trainer.global_rank, trainer.world_size, trainer.local_rank)
        recorder.mark_going_on()
        be_watched(recorder)
        tell_of_nodes(recorder, trainer.num_nodes, trainer.node_rank)
        self._metrics = (
            _metrics_of(recorder) if self._log_metrics and trainer.is_global_zero else None
        )
        for package in lightning_packages():
            watch_saves(package.Trainer)  # no hook tells when a save has ended
        self._tell(trainer, "trainer_init")

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Model and optimizers are on their device."""
        self._tell(trainer, "trainer_init")

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A few validation batches come before training."""
        self._tell(trainer, "sanity_check")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Next comes a batch, and before the first the loader's workers."""
        self._tell(trainer, "dataloading")

    on_sanity_check_end = on_train_epoch_start = on_train_epoch_end = on_train_start

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int
    ) -> None:
        """A batch has come: all of a step that the page tells. What it is at now its calls tell."""
        page = self._recorder.page
        page.enter_phase("training_step", None, trainer.global_step, batch_idx)
        if self._metrics is not None:
            self._metrics.log_if_due(trainer)
        timed = self._clock.batch_comes(page)
        if timed is not (self.on_train_batch_end is not None):
            self.on_before_backward = self._clock.backward_comes if timed else None
            self.on_train_batch_end = self._clock.batch_is_done if timed else None

    # called in every step too, which costs 3 us a hook: Lightning passes over what is None
    on_before_zero_grad = on_after_backward = on_before_optimizer_step = None
    on_before_backward: Callable[..., None] | None = None
    on_train_batch_end: Callable[..., None] | None = None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Also called in the sanity check."""
        self._tell(trainer, _evaluation(trainer))

    on_test_start = on_predict_start = on_validation_start

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int, *_: int
    ) -> None:
        """A batch has come; where there are several loaders, their number comes last."""
        self._tell(trainer, _evaluation(trainer), batch_idx)

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: object,
        batch: object,
        batch_idx: int,
        *_: int,
    ) -> None:
        """The time until the next batch counts as validation too."""
        self._tell(trainer, _evaluation(trainer), batch_idx)

    on_test_batch_end = on_predict_batch_end = on_validation_batch_end

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Within ``fit``, training goes on."""
        training = trainer.state.fn == "fit" and not trainer.sanity_checking
        self._tell(trainer, "dataloading" if training else _evaluation(trainer))

    on_test_end = on_predict_end = on_validation_end

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: object
    ) -> None:
        """The file is written after this; the phase lasts until the next hook."""
        self._tell(trainer, "checkpoint_save")

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Also called before an evaluation, which trains on from nothing."""
        if trainer.state.fn == "fit":
            tell(self._recorder, of_lightning(str(trainer.ckpt_path), checkpoint))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Training is over."""
        self._tell(trainer, "teardown")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Loggers and the strategy close."""
        self._tell(trainer, "teardown")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """The exception leaves ``fit`` after this; a script that catches it may go on."""
        current().mark_raised(exception)

    def _tell(self, trainer: Trainer, phase: Phase, batch: int | None = None) -> None:
        self._clock.interrupt()
        page = self._recorder.page
        page.enter_phase(phase, trainer.current_epoch, trainer.global_step, batch)


def _evaluation(trainer: Trainer) -> Phase:
    return "sanity_check" if trainer.sanity_checking else "validation"


def _revive(asked: type[HangCheck], log_metrics: bool = False) -> HangCheck:
    revived = asked.__new__(asked)
    revived._log_metrics = log_metrics  # noqa: SLF001 - `__init__` would record in the wrong process
    return revived


def _metrics_of(recorder: Recorder) -> LoggedMetrics | None:
    """Imported here because few ask for it; without a session there is nothing to read."""
    from lightning_hangcheck.hooks.callbacks.logged_metrics import LoggedMetrics

    return LoggedMetrics(recorder.session) if recorder.session is not None else None


@cache
def _callback_class(asked: type, callbacks: tuple[type, ...]) -> type:
    """Derive from Lightning's own Callback, so that hooks of its next version exist here too."""
    names = {name: getattr(asked, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(asked.__name__, (asked, *callbacks), {**names, "asked": asked})
