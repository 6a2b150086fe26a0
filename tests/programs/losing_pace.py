"""Trains two ranks with Lightning; rank 1 waits longer for its batches while a file is there.

The files, in the working folder: slow (it is), enough (the training ends).
"""

import os
import time
from pathlib import Path

import gloo
import hooks_model
import torch
from hooks_model import package

RANK = int(os.environ["LOCAL_RANK"])
USUAL_S, SLOW_S = 0.02, 0.2
SLOW, ENOUGH = Path("slow"), Path("enough")


class Batches(torch.utils.data.IterableDataset):
    """As many as are wanted."""

    def __iter__(self):
        while True:
            time.sleep(SLOW_S if RANK == 1 and SLOW.exists() else USUAL_S)
            yield torch.ones(4)


class Told(package.Callback):
    """Says how many steps there were, and ends the training in all ranks at the same step."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step % 50 == 0 and RANK == 0:
            hooks_model.say("step", step=trainer.global_step)
        if trainer.global_step % 10 == 0:
            trainer.should_stop = trainer.strategy.reduce_boolean_decision(
                ENOUGH.exists(), all=False
            )


package.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=False,
    max_steps=-1,
    max_epochs=-1,
    callbacks=[Told()],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(hooks_model.Tiny(), torch.utils.data.DataLoader(Batches()))
gloo.leave()
