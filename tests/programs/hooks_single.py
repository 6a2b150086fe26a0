"""One process that goes through all four stages with HangCheck, then through what may go wrong."""

import copy
from multiprocessing.reduction import ForkingPickler

from hooks_model import Spy, Tiny, loader, package, torch, trainer
from saying import page, say

import lightning_hangcheck as hc
from lightning_hangcheck.hooks.callbacks import HangCheck

check, spy = HangCheck(), Spy()
say(
    "kind",
    callback=isinstance(check, package.Callback),
    hangcheck=isinstance(check, HangCheck),
    state_key=check.state_key,
    public=hc.HangCheck is HangCheck,
    revived=[
        isinstance(again, HangCheck) and isinstance(again, package.Callback)
        for again in (ForkingPickler.loads(ForkingPickler.dumps(check)), copy.deepcopy(check))
    ],
)

stages = {
    "fit": {"train_dataloaders": loader(), "val_dataloaders": loader()},
    "validate": {"dataloaders": loader()},
    "test": {"dataloaders": loader()},
    "predict": {"dataloaders": loader()},
}
model = Tiny()
logger = package.loggers.CSVLogger("csv")
running = trainer(callbacks=[check, spy], max_epochs=2, limit_train_batches=2, logger=logger)
for stage, data in stages.items():
    spy.seen.clear()
    getattr(running, stage)(model, **data)
    say(stage, seen=spy.seen, beats=page().beats)
    if stage == "fit":
        fitted = page().save
        running.save_checkpoint("end.ckpt")
        say("saved", fitted=fitted.number, step=fitted.step, again=page().save.number)


class Own(HangCheck):
    """A user's own kind, which wants each batch."""

    def on_train_batch_start(self, *given):
        super().on_train_batch_start(*given)
        counted.append(given[3])


many, counted = torch.utils.data.DataLoader(torch.zeros(60, 4)), []
for check in (HangCheck(), Own()):
    spy = Spy()
    quick = {"max_epochs": 1, "logger": False, "enable_checkpointing": False}
    trainer(callbacks=[check, spy], **quick).fit(Tiny(), many)
    starts = [row for row in spy.seen if row[0] == "on_train_batch_start"]
    seen, timed = [*starts, spy.seen[-1]], page().step_times.steps
    say(f"quick {type(check).__name__}", seen=seen, counted=counted, timed=timed)
try:
    trainer(callbacks=HangCheck(), **quick).fit(Tiny(fail_at=59), many)
except RuntimeError as error:
    say("late", ending=page().ending, batch=page().batch, error=str(error))

onward = trainer(callbacks=HangCheck(), max_epochs=3, limit_train_batches=2, logger=False)
onward.fit(Tiny(), loader(), ckpt_path="end.ckpt")
onward.validate(Tiny(), loader(), ckpt_path="end.ckpt")
left = copy.copy(onward.fit_loop.epoch_loop.hangcheck)
say("resumed", step=onward.global_step, saves=page().save.number, left=left)

broken, second, spy = HangCheck(), HangCheck(), Spy()
options = {"max_steps": 2, "logger": False, "enable_checkpointing": False}
broken.on_train_batch_start("no trainer", None, None, 0)
trainer(callbacks=[broken, second, spy], **options).fit(Tiny(), loader())
say("broken", seen=spy.seen)

first, spy = HangCheck(), Spy()
trainer(callbacks=[spy, first, HangCheck()], **options).fit(Tiny(), loader())
say("twice", step=page().step, phases=sorted({row[1] for row in spy.seen}))

try:
    trainer(callbacks=[HangCheck(), Spy()], **options).fit(Tiny(fail_at=0), loader())
except RuntimeError as error:
    say("left", error=str(error))
trainer(callbacks=HangCheck(), **options).fit(Tiny(), loader())
say("went on", ending=page().ending, last_words=page().last_words)
