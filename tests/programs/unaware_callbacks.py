"""A script that never heard of this package, and looks at what its Trainers call back.

It prints that as JSON: the lists, the order in which hooks are called, what a save holds.
"""

import json
import sys

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

QUIET = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
CALLED = []


class First(Callback):
    def setup(self, *_, **__):
        CALLED.append("first")

    def on_train_batch_start(self, *_):
        CALLED.append("batch")

    def on_save_checkpoint(self, trainer, module, checkpoint):
        checkpoint["own"] = 1


class Second(First):
    def setup(self, *_, **__):
        CALLED.append("second")


class Tiny(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        return self.layer(batch).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def names(trainer):
    return [type(one).__name__ for one in trainer.callbacks]


first, second = First(), Second()
empty, two = Trainer(callbacks=[], **QUIET), Trainer(callbacks=[first, second], **QUIET)
two.fit_loop.max_epochs = 1
two.fit(Tiny(), torch.utils.data.DataLoader(torch.zeros(40, 4)))
two.save_checkpoint("last.ckpt")
told = {
    "empty": empty.callbacks == [],
    "same objects": two.callbacks[0] is first and two.callbacks[1] is second,
    "names": names(two),
    "attributes": sorted(vars(two)),
    "called": CALLED,
    "saved": sorted(torch.load("last.ckpt", weights_only=False)),
}
sys.stdout.write(json.dumps(told) + "\n")
