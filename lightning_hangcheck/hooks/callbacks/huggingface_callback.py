"""The callback of Hugging Face's Trainer: it tells the page where training is, nothing else."""

from __future__ import annotations

import sys
from functools import cache
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.hooks.callbacks.hook_guard import guard_hooks
from lightning_hangcheck.hooks.zero_code.files import watch_resuming, watch_saves
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import TrainerControl, TrainerState, TrainingArguments

    from lightning_hangcheck.model.naming.slugs import Phase


@guard_hooks
class HuggingFaceHangCheck:
    """Shows where in training each rank is, and has the node watched.

    The same as `HangCheck`, for ``transformers.Trainer``. It runs no collective, touches no tensor
    and never raises: a hook that fails is switched off and said once.

    Example:
        >>> import lightning_hangcheck as hc
        >>> trainer = Trainer(model, arguments, callbacks=[hc.HuggingFaceHangCheck()])

    Attributes:
        asked: The class that was called; an instance's own is derived from it when it is made.
    """

    asked: type[HuggingFaceHangCheck]

    def __new__(cls) -> HuggingFaceHangCheck:
        """Make an instance of a class that transformers takes for one of its own."""
        from transformers import TrainerCallback

        asked: type = cls
        return object.__new__(_callback_class(asked, TrainerCallback))

    def __init__(self) -> None:
        self._recorder = current()
        be_watched(self._recorder)

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        """Pickling and copying make a new one."""
        return self.asked, ()

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Its Trainer is made; what it loads it loads before training begins."""
        watch_resuming(sys.modules["transformers.trainer"].Trainer)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Learn who this rank is; the first batch comes next."""
        rank, local_rank = args.process_index, args.local_process_index
        self._recorder.learn_identity(rank, args.world_size, local_rank)
        be_watched(self._recorder)
        watch_saves(sys.modules["transformers.trainer"].Trainer)
        self._tell(state, "dataloading")

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Next comes a batch."""
        self._tell(state, "dataloading")

    on_substep_end = on_step_end = on_epoch_end = on_save = on_epoch_begin

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """A batch has come; forward and backward follow."""
        self._recorder.page.enter_phase("training_step")

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Gradients are there and clipped."""
        self._recorder.page.enter_phase("optimizer_step")

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Weights are new; the callbacks of the step's end may do anything."""
        self._recorder.page.enter_phase("training_step")

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """A batch of the evaluation was done."""
        self._tell(state, "validation")

    on_evaluate = on_predict = on_prediction_step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Training is over."""
        self._tell(state, "teardown")

    def _tell(self, state: TrainerState, phase: Phase) -> None:
        self._recorder.page.enter_phase(phase, int(state.epoch or 0), state.global_step)


@cache
def _callback_class(asked: type, callback: type) -> type:
    """Derive from transformers' own callback, so that its next version's events exist here too."""
    names = {name: getattr(asked, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(asked.__name__, (asked, callback), {**names, "asked": asked})
