"""The callbacks for Lightning and Hugging Face: they write where training is into the page.

Each hook only writes a phase into shared memory: no collective, no access to tensors, no exception.
Both also tell which checkpoint training resumes from, and what saved ones lack.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.files import reserve_file
from lightning_hangcheck.hooks.being_watched import be_watched, tell_of_nodes
from lightning_hangcheck.hooks.zero_code.wrapping import (
    FAMILIES,
    Call,
    Function,
    guard_hooks,
    in_section,
    put,
    switch_off,
    switched_off,
    wrap,
)
from lightning_hangcheck.model.words import words_of
from lightning_hangcheck.recorder.announcer import attempt
from lightning_hangcheck.recorder.lifecycle import Recorder, current
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import seconds_in_words
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import ModuleType

    from lightning.pytorch import Trainer
    from transformers import TrainerState, TrainingArguments

    from lightning_hangcheck.model.beat import StepTimes
    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.recorder.page import PageWriter
    from lightning_hangcheck.session.session import Session

BETWEEN_NS = 50_000_000
"""Least time between the starts of two timed steps: at 20 timed steps/s this costs 0.3 ms per s."""
FIRST_STEPS = 3
"""Not timed: they compile, connect, fill caches. Nor is a step after an interruption: it fetches
more."""


def lightning_packages() -> tuple[ModuleType, ...]:
    """Return the imported Lightning packages (one or both); import one if there is none."""
    names = FAMILIES["LIGHTNING"]
    if not any(map(sys.modules.get, names)):
        there = [name for name in names if find_spec(name.partition(".")[0]) is not None]
        if not there:
            raise BadUsage("Lightning is not installed", "pip install lightning")
        importlib.import_module(there[0])
    return tuple(filter(None, map(sys.modules.get, names)))


@cache
def _callback_class(asked: type, callbacks: tuple[type, ...]) -> type:
    """Derive from the framework's own callback, so that hooks of later versions exist too."""
    names = {name: getattr(asked, name) for name in ("__module__", "__qualname__", "__doc__")}
    return type(asked.__name__, (asked, *callbacks), {**names, "asked": asked})


def _showing(phase: Phase | None = None, batch_at: int | None = None) -> Callable[..., None]:
    """Make a hook that shows a phase, else an evaluation; the batch is argument ``batch_at``."""

    def hook(guest: HangCheck, trainer: Trainer, _: object, *given: Any, **__: object) -> None:  # noqa: ANN401 - any of them
        batch = None if batch_at is None else given[batch_at]
        evaluation: Phase = "sanity_check" if trainer.sanity_checking else "validation"
        guest._tell(trainer, phase or evaluation, batch)  # noqa: SLF001 - it is its hook

    return hook


@guard_hooks
class HangCheck:
    """Shows where in training each rank is, and has the node watched.

    For ``Trainer`` of ``lightning.pytorch`` and ``pytorch_lightning``. It runs no collective,
    touches no tensor and never raises: a hook that fails is switched off and logged once. Without
    ``hangcheck run`` it starts one watching process per node, which ends with the job.

    An instance is a ``Callback`` of each Lightning package that is imported when it is made.

    Args:
        log_metrics: Let rank 0 send ``hangcheck/state``, ``hangcheck/step_time``,
            ``hangcheck/slowest_rank`` and ``hangcheck/straggler_ratio`` of its own node's ranks
            through the Trainer's loggers, every ``log_every_n_steps``.
    """

    asked: type[HangCheck]
    """The class that was called; an instance's class is derived from it at construction."""

    def __new__(cls, *, log_metrics: bool = False) -> HangCheck:
        """Make an instance of a class that Lightning accepts as its own."""
        asked: type = cls
        callbacks = tuple(package.Callback for package in lightning_packages())
        return object.__new__(_callback_class(asked, callbacks))

    def __init__(self, *, log_metrics: bool = False) -> None:
        self._log_metrics = log_metrics
        self._metrics: LoggedMetrics | None = None
        self._clock, self._is_quick, self._steps = StepClock(), False, None
        self._recorder = current()
        be_watched(self._recorder)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickling (``ddp_spawn``) and copying make a blank instance, which `setup` initialises."""
        return self.asked.__new__, (self.asked,), {"_log_metrics": self._log_metrics}

    def setup(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Learn this rank's number, which is unknown before under ``ddp_spawn``."""
        first = next((check for check in trainer.callbacks if isinstance(check, HangCheck)), self)
        if first is not self:
            switch_off(self)
            log.once("callback-twice", "HangCheck was added twice; the second one does nothing")
            return
        self._clock = StepClock()
        self._be_quick(False)
        self._recorder = recorder = current()
        recorder.learn_identity(trainer.global_rank, trainer.world_size, trainer.local_rank)
        recorder.mark_going_on()
        be_watched(recorder)
        tell_of_nodes(recorder, trainer.num_nodes, trainer.node_rank)
        self._metrics = None
        if self._log_metrics and trainer.is_global_zero and recorder.session is not None:
            metrics = attempt("the metrics of HangCheck", LoggedMetrics, recorder.session)
            self._metrics = metrics  # without them the other hooks go on
        for package in lightning_packages():
            watch_saves(package.Trainer)  # no hook runs after a save
        if type(self).on_train_batch_start is HangCheck.on_train_batch_start:
            attempt("watching quick batches", watch_batches, trainer.fit_loop.epoch_loop, self)
        self._tell(trainer, "trainer_init")

    on_fit_start = _showing("trainer_init")  # model and optimizers are on their device
    on_sanity_check_start = _showing("sanity_check")
    # next comes a batch; before the first, the loader's workers start
    on_train_start = on_sanity_check_end = _showing("dataloading")
    on_train_epoch_start = on_train_epoch_end = _showing("dataloading")
    on_save_checkpoint = _showing("checkpoint_save")  # the file is written after this
    on_train_end = teardown = _showing("teardown")
    on_validation_start = on_test_start = on_predict_start = _showing()
    # arguments: batch, its number, its loader; on end hooks the outputs come first
    on_validation_batch_start = on_test_batch_start = on_predict_batch_start = _showing(batch_at=1)
    # the time until the next batch counts as validation too
    on_validation_batch_end = on_test_batch_end = on_predict_batch_end = _showing(batch_at=2)

    def on_train_batch_start(
        self, trainer: Trainer, _: object, _b: object, batch_idx: int, *_n: int
    ) -> None:
        """Show the new batch; what the step then does is shown by its calls."""
        page = self._recorder.page
        page.enter_phase("training_step", None, trainer.global_step, batch_idx)
        if self._metrics is not None:
            self._metrics.log_if_due(trainer)
        timed = self._clock.batch_comes(page)
        if timed is not (self.on_train_batch_end is not None):
            self.on_before_backward = self._clock.backward_comes if timed else None
            self.on_train_batch_end = self._clock.batch_is_done if timed else None

    # also called in every step, at 3 us a hook: Lightning skips hooks that are None
    on_before_zero_grad = on_after_backward = on_before_optimizer_step = None
    on_before_backward: Callable[..., None] | None = None
    on_train_batch_end: Callable[..., None] | None = None

    def is_shown_early(self, loop: Any) -> bool:  # noqa: ANN401 - Lightning's
        """Show a batch as it begins, if batches come quickly: then no hook of it is called."""
        now_ns, page = monotonic_ns(), self._recorder.page
        quick = now_ns < self._clock.untimed_until_ns and page.phase == "training_step"
        if quick is not self._is_quick:
            quick = self._be_quick(quick)
            self._steps = _steps_counted_by(loop)
        if quick:
            step = loop.global_step if self._steps is None else self._steps.completed
            page.show_batch(now_ns, step, loop.batch_progress.current.ready)
            if self._metrics is not None:
                self._metrics.log_if_due(loop.trainer)
        return quick

    def _be_quick(self, quick: bool) -> bool:
        hook = vars(self).get("on_train_batch_start", self)
        if quick and hook is self:  # else all hooks were switched off
            self.on_train_batch_start = None
        elif hook is None:
            del self.on_train_batch_start
        self._is_quick = quick and hook is self
        return self._is_quick

    def on_validation_end(self, trainer: Trainer, *_: object, **__: object) -> None:
        """Show, within ``fit``, that training continues."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._tell(trainer, "dataloading")

    def on_load_checkpoint(self, trainer: Trainer, _: object, checkpoint: dict[str, Any]) -> None:
        """Report the checkpoint; an evaluation calls this too, but does not resume training."""
        if trainer.state.fn == "fit":
            tell_of_lightning(self._recorder, str(trainer.ckpt_path), checkpoint)

    def on_exception(self, _: Trainer, _m: object, exception: BaseException) -> None:
        """The exception leaves ``fit`` after this; a script that catches it may continue."""
        current().mark_raised(exception)

    def _tell(self, trainer: Trainer, phase: Phase, batch: int | None = None) -> None:
        self._clock.interrupt()
        self._be_quick(False)
        page = self._recorder.page
        page.enter_phase(phase, trainer.current_epoch, trainer.global_step, batch)


OUR_HOOKS: dict[str, tuple[ModuleType, Function]] = {}
"""By package of Lightning: the module whose ``_call_callback_hooks`` calls ours, too, and the plain
function."""


class Watched:
    """Our callback of a loop, in the loop: looked up elsewhere it takes 0.3 us more."""

    def __init__(self, check: HangCheck) -> None:
        self.check = check

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled or copied loop has None, also where this package is not installed."""
        return type(None), ()


def watch_batches(loop: Any, check: HangCheck) -> None:  # noqa: ANN401 - Lightning's
    """Have a loop over batches ask a callback at each batch; in quick ones no hook costs time."""
    _watch_loop(loop.__class__)
    loop.hangcheck = Watched(check)


def _steps_counted_by(loop: Any) -> Any:  # noqa: ANN401 - Lightning's
    """Return what has ``loop.global_step`` as ``completed``: asking the loop takes 0.5 us more.

    None if this version of Lightning keeps it elsewhere.
    """
    with suppress(AttributeError):
        if loop.trainer.lightning_module.automatic_optimization:
            return loop.automatic_optimization.optim_progress.optimizer.step.total
        return loop.manual_optimization.optim_step_progress.total
    return None


@cache
def _watch_loop(kind: type) -> None:
    kind.hangcheck = None  # type: ignore[attr-defined] # what a loop has that is not watched
    module, theirs = OUR_HOOKS.get(kind.__module__.partition(".loops.")[0], (None, None))
    ours = getattr(module, "_call_callback_hooks", None)

    def make(advance: Function, _: object) -> Function:
        # the processor's caches are full of other code here: each line costs several times its time
        def advance_watched(loop: Any, *given: Any, **named: Any) -> Any:  # noqa: ANN401 - a guest's
            watched, quick = None, False
            try:
                watched = loop.hangcheck
                quick = watched is not None and watched.check.is_shown_early(loop)
            except Exception as error:  # noqa: BLE001 - the hooks' boundary: training must go on
                loop.hangcheck = None
                switch_off(watched and watched.check)
                switched_off("HangCheck failed at a batch", error, " and is switched off")
            if not quick or module is None or module._call_callback_hooks is not ours:  # noqa: SLF001 - there is no other door
                return advance(loop, *given, **named)
            module._call_callback_hooks = theirs  # type: ignore[attr-defined] # noqa: SLF001 - as above
            try:
                return advance(loop, *given, **named)
            finally:
                module._call_callback_hooks = ours  # type: ignore[attr-defined] # noqa: SLF001 - as above

        return advance_watched

    put(kind, "advance", make)


class StepClock:
    """Times the parts of training steps in the rank itself: clock readings and sums."""

    # Lightning's overhead per hook exceeds the hook's own work. So steps of a few milliseconds are
    # timed only now and then, and the inner hooks exist only during a timed step.

    def __init__(self) -> None:
        self._left_out = FIRST_STEPS
        self._next_ns = 0
        self.untimed_until_ns = 0
        """Until then no step is timed, and none is being timed."""
        self._began_ns = self._forward_ns = self._ended_ns = 0

    def batch_comes(self, page: PageWriter) -> bool:
        """End the previous step and begin the next; return whether the next is timed."""
        now_ns, began_ns, ended_ns = monotonic_ns(), self._began_ns, self._ended_ns
        if ended_ns:
            computed_ns = self._forward_ns or began_ns
            page.time_step(now_ns - ended_ns, computed_ns - began_ns, ended_ns - computed_ns)
        timed = not self._left_out and now_ns >= self._next_ns
        self._left_out = max(0, self._left_out - 1)
        self._began_ns, self._forward_ns, self._ended_ns = now_ns if timed else 0, 0, 0
        if timed:
            self._next_ns = now_ns + BETWEEN_NS
        self.untimed_until_ns = 0 if timed or self._left_out else self._next_ns
        return timed

    def backward_comes(self, *_: object) -> None:
        """End the forward pass; of several backward passes in a step the first counts."""
        if self._began_ns and not self._forward_ns:
            self._forward_ns = monotonic_ns()

    def batch_is_done(self, *_: object) -> None:
        """End the computation: the optimizer has stepped, or gradients were accumulated."""
        if self._began_ns:
            self._ended_ns = monotonic_ns()

    def interrupt(self) -> None:
        """Discard the steps before and after something else that happens between them."""
        self._began_ns = self._forward_ns = self._ended_ns = 0
        self._left_out = max(self._left_out, 1)
        self.untimed_until_ns = 0


class LoggedMetrics:
    """What `HangCheck(log_metrics=True)` sends through the Trainer's loggers: pace, state."""

    # Rank 0 reads memory that its node's ranks and their sidecar write, and no file.

    def __init__(self, session: Session) -> None:
        # imported here because few use it
        from lightning_hangcheck.observe.discovery import Pages

        self._state = reserve_file(session.state_file, 1)
        self._pages = Pages(session.pages)
        self._before: dict[int, StepTimes] = {}
        self._step = 0

    def log_if_due(self, trainer: Trainer) -> None:
        """Log at the Trainer's interval; a logger that fails is reported once."""
        step = trainer.global_step
        if step == self._step or step % max(1, trainer.log_every_n_steps):
            return
        self._step = step
        metrics = attempt("the metrics of HangCheck", self._since_last_time)
        for logger in trainer.loggers if metrics else ():
            attempt("log_metrics of HangCheck", logger.log_metrics, metrics, step)

    def _since_last_time(self) -> dict[str, float]:
        """Compare the ranks' timings since the last call; empty if there are none."""
        from lightning_hangcheck.report.stragglers import compared

        if not self._before:
            self._pages.find_new()  # all ranks have met by now
        # if two processes were one rank in turn, the newer page counts
        beats = sorted(self._pages.read().values(), key=lambda beat: beat.last_beat_ns)
        known = {beat.rank: beat.step_times for beat in beats if beat.rank is not None}
        before, self._before = self._before, {rank: made for rank, made in known.items() if made}
        since = {rank: t.since(before[rank]) for rank, t in self._before.items() if rank in before}
        found = compared({rank: made for rank, made in since.items() if made.steps > 0})
        if found is None:
            return {}
        return {
            "hangcheck/state": self._state[0],
            "hangcheck/step_time": found.typical.seconds,
            "hangcheck/slowest_rank": found.ranks[0].rank,
            "hangcheck/straggler_ratio": found.ranks[0].ratio,
        }


@guard_hooks
class HuggingFaceHangCheck:
    """The same as `HangCheck`, for ``transformers.Trainer``."""

    asked: type[HuggingFaceHangCheck]

    def __new__(cls) -> HuggingFaceHangCheck:
        """Make an instance of a class that transformers accepts as its own."""
        from transformers import TrainerCallback

        asked: type = cls
        return object.__new__(_callback_class(asked, (TrainerCallback,)))

    def __init__(self) -> None:
        self._recorder = current()
        self.resumes_from: str | None = None
        be_watched(self._recorder)

    def __reduce__(self) -> tuple[Callable[[], object], tuple[()]]:
        return self.asked, ()

    @staticmethod
    def _showing(phase: Phase) -> Callable[..., None]:
        def hook(guest: Any, _: object, state: TrainerState, *__: object, **___: object) -> None:  # noqa: ANN401 - of this class
            page = guest._recorder.page  # noqa: SLF001 - it is its hook
            page.enter_phase(phase, int(state.epoch or 0), state.global_step)

        return hook

    def on_init_end(self, *_: object, **__: object) -> None:
        """The Trainer exists; it loads its checkpoint before training begins."""
        watch_resuming(sys.modules["transformers.trainer"].Trainer)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, *_: object, **__: object
    ) -> None:
        """Learn this rank's number; the first batch comes next."""
        rank, local_rank = args.process_index, args.local_process_index
        self._recorder.learn_identity(rank, args.world_size, local_rank)
        be_watched(self._recorder)
        watch_saves(sys.modules["transformers.trainer"].Trainer)
        if self.resumes_from is not None:
            tell_of_huggingface(self._recorder, str(self.resumes_from), state)
        self.on_epoch_begin(args, state)

    on_epoch_begin = on_substep_end = on_step_end = on_epoch_end = _showing("dataloading")
    on_save = on_epoch_begin
    on_prediction_step = on_evaluate = on_predict = _showing("validation")
    on_train_end = _showing("teardown")

    def on_step_begin(self, *_: object, **__: object) -> None:
        """A batch has come, or (as `on_optimizer_step`) the weights are new."""
        self._recorder.page.enter_phase("training_step")

    on_optimizer_step = on_step_begin

    def on_pre_optimizer_step(self, *_: object, **__: object) -> None:
        """Gradients are complete and clipped."""
        self._recorder.page.enter_phase("optimizer_step")


# Checkpoints: which one training resumes from, and whether saved ones hold what resuming needs.
# Both are decided by names: keys of saved dictionaries, files of a folder, arguments; no file is
# opened.

PARTS = {
    "optimizer state": frozenset({"optimizer", "optimizers", "optim", "opt", "groups"}),
    "scheduler": frozenset({"scheduler", "schedulers", "sched", "lrs"}),
    "history": frozenset(
        {"trainer", "loops", "loop", "epoch", "epochs", "step", "steps", "iteration", "iterations"}
        | {"history", "progress", "log", "logs", "losses", "metrics"}
    ),
}
"""What resuming needs to continue as if never stopped, by words in the names under which it is
kept: Lightning's keys ``optimizer_states``, ``lr_schedulers``, ``loops``; Hugging Face's files
``optimizer.pt``, ``scheduler.pt``, ``trainer_state.json``; those of PyTorch's tutorial on saving,
``optimizer_state_dict``, ``epoch``; an optimizer's own ``param_groups``, a scheduler's own
``base_lrs``."""
STARTS_ANEW = {
    "optimizer state": "no optimizer state (its moments start at zero)",
    "scheduler": "no scheduler (the learning rate starts anew)",
    "history": "no step or epoch (the loop starts at its first)",
}
MOST_NAMES = 10_000
LOOK_LIMIT_S = 2.0
"""The file was read a moment ago; only storage that has stalled since takes so long."""


def parts_held(names: Iterable[object]) -> frozenset[str]:
    """Return the parts of `PARTS` that a checkpoint with these keys or files holds."""
    words: set[str] = set()
    for _, name in zip(range(MOST_NAMES), names, strict=False):
        words.update(words_of(name) if isinstance(name, str) else ())
    return frozenset(part for part, known in PARTS.items() if known & words)


def tell_resumed(
    recorder: Recorder, path: str, step: int | None, seen: str, lacks: Sequence[str] = ()
) -> None:
    """Report what training resumes from; until the next save it counts as the last checkpoint."""
    age_s = None
    if "://" not in path:
        with suppress(OSError, NoAnswer):
            written = within(LOOK_LIMIT_S, lambda: Path(path).stat().st_mtime)
            age_s = max(0.0, round(time.time() - written, 3))
        path = str(Path(path).absolute())
    path = redact_text(path)
    at = f"step {step}" if step is not None else ""
    age = f"written {seconds_in_words(age_s)} ago" if age_s is not None else ""
    facts = ", ".join(filter(None, (at, seen, age))) or "nothing is known of it"
    without = f"; it holds no {' and no '.join(lacks)}: what it lacks starts anew"
    recorder.page.mark_loaded(time.time_ns(), step)
    recorder.say(f"training goes on from {path}: {facts}" + (without if lacks else ""))
    recorder.note("resumed", path=path, step=step, seen=seen, age_s=age_s, lacks=lacks)


def tell_of_lightning(recorder: Recorder, path: str, checkpoint: Mapping[str, Any]) -> None:
    """Report the checkpoint that Lightning has loaded."""

    def number(*keys: str) -> int | None:
        """Read an integer from nested dictionaries, whose keys differ between versions."""
        tree: object = checkpoint
        for key in keys:
            tree = tree.get(key) if isinstance(tree, Mapping) else None
        return tree if isinstance(tree, int) else None

    batches = number("loops", "fit_loop", "epoch_loop.batch_progress", "total", "completed")
    epoch = number("epoch")
    seen = [f"epoch {epoch}"] if epoch is not None else []
    if batches:
        seen.append(f"{batches} {'batch' if batches == 1 else 'batches'} seen")
    tell_resumed(recorder, path, number("global_step"), ", ".join(seen))


def tell_of_huggingface(recorder: Recorder, folder: str, state: TrainerState) -> None:
    """Report what Hugging Face's Trainer has loaded; it ignores missing parts."""
    lacks: list[str] = []
    with suppress(OSError, NoAnswer):
        found = within(LOOK_LIMIT_S, lambda: [path.name for path in Path(folder).iterdir()])
        lacks = [part for part in PARTS if part not in parts_held(found)]
    seen = f"epoch {state.epoch:g}" if state.epoch else ""
    tell_resumed(recorder, folder, state.global_step, seen, lacks)


@cache
def watch_resuming(trainer: type) -> None:
    """Watch the method with which transformers' Trainer class resumes; later calls do nothing."""

    def tell_callback(call: Call) -> None:
        for guest in call.instance.callback_handler.callbacks:
            if isinstance(guest, HuggingFaceHangCheck):
                guest.resumes_from = call.given().get("checkpoint")

    wrap(trainer, "_load_optimizer_and_scheduler", after=tell_callback)


class SavedParts:
    """Parts in all checkpoints that this process saved so far; missing parts are reported once."""

    # That happens at the second step with a save: an optimizer in its own file is saved by then.

    def __init__(self) -> None:
        self._held: frozenset[str] = frozenset()
        self._step: int | None = None
        self._said = False

    def note(self, held: Iterable[str], remedy: str) -> None:
        """Record a successful save with these parts of `PARTS`."""
        from lightning_hangcheck.hooks.zero_code.loops import teller

        recorder = current()
        before, self._step = self._step, recorder.page.step
        self._held |= frozenset(held)
        needed = [part for part in PARTS if part != "scheduler" or teller().scheduled]
        lacking = [part for part in needed if part not in self._held]
        if self._said or not lacking or before is None or before == self._step:
            return
        self._said = True
        without = " and ".join(STARTS_ANEW[part] for part in lacking)
        recorder.say(f"the checkpoints saved so far hold {without}: {remedy}")
        recorder.note("saves_lack", parts=lacking)


_saved_parts = SavedParts()


@cache
def watch_saves(trainer: type) -> None:
    """Watch the method with which a Trainer class saves a checkpoint; later calls do nothing."""

    def of_lightning(call: Call) -> None:
        alone = call.given().get("weights_only")
        note(alone, "ModelCheckpoint(save_weights_only=False) keeps them")

    def of_huggingface(call: Call) -> None:
        alone = getattr(call.instance.args, "save_only_model", False)
        note(alone, "TrainingArguments(save_only_model=False) keeps them")

    def note(alone: object, remedy: str) -> None:
        # a Trainer's weights-only checkpoint still holds the history
        _saved_parts.note(["history"] if alone else PARTS, remedy)

    for name, then in (("save_checkpoint", of_lightning), ("_save_checkpoint", of_huggingface)):
        wrap(trainer, name, in_section("saving", "Trainer.save_checkpoint", then=then))


def instrument_saves(module: ModuleType) -> None:
    """Watch torch.serialization; a save counts if it ends well, so its name must be true."""

    def saved(call: Call) -> Any | None:  # noqa: ANN401 - any state
        what, where = map(call.given().get, ("obj", "f"))
        return what if is_checkpoint(what, where) else None

    def title(call: Call) -> str:
        return "torch.save" if saved(call) is None else "torch.save of a checkpoint"

    def note(call: Call) -> None:
        what = saved(call)
        if what is not None:  # by a dictionary's keys, else by class names: Optimizer
            mapped = isinstance(what, Mapping)
            names = what if mapped else [kind.__name__ for kind in type(what).__mro__]
            _saved_parts.note(parts_held(names), "save optimizer.state_dict() and the step, too")

    wrap(module, "save", in_section("saving", title, then=note))


def is_checkpoint(what: Any, where: Any) -> bool:  # noqa: ANN401 - torch.save takes anything
    """Whether ``torch.save`` keeps a state in a file: a module, an optimizer or a dictionary."""
    is_file = isinstance(where, (str, os.PathLike)) or isinstance(getattr(where, "name", None), str)
    return is_file and (isinstance(what, Mapping) or hasattr(type(what), "state_dict"))
