"""A tiny model and data, and a callback that reads its rank's page behind each hook."""

import importlib
import os
import sys

from saying import page, say

package = importlib.import_module(os.environ.get("PACKAGE", "lightning.pytorch"))
torch = importlib.import_module("torch")

SPIED = [
    "setup", "on_fit_start", "on_sanity_check_start", "on_sanity_check_end", "on_train_start",
    "on_train_epoch_start", "on_train_batch_start", "on_before_backward", "on_after_backward",
    "on_before_optimizer_step", "on_train_batch_end", "on_train_epoch_end", "on_train_end",
    "on_validation_start", "on_validation_batch_start", "on_validation_end", "on_test_start",
    "on_test_batch_start", "on_predict_start", "on_predict_batch_start", "on_save_checkpoint",
    "teardown",
]  # fmt: skip


class Tiny(package.LightningModule):
    def __init__(self, fail_at=None):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.fail_at = fail_at

    def training_step(self, batch, batch_idx):
        if batch_idx == self.fail_at:
            raise RuntimeError("no more of this")
        loss = self.layer(batch).sum()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("seen", self.layer(batch).sum())

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def loader():
    return torch.utils.data.DataLoader(torch.zeros(8, 4), batch_size=2)


class Spy(package.Callback):
    """Added after HangCheck, so it sees the page as HangCheck left it."""

    def __init__(self):
        self.seen = []

    def look(self, hook):
        beat = page()
        self.seen.append([hook, beat.phase, beat.epoch, beat.step, beat.batch])

    def on_exception(self, trainer, pl_module, exception):
        beat = page()
        say("raised", rank=trainer.global_rank, ending=beat.ending, last_words=beat.last_words)


def spying(hook):
    def look(self, *_, **__):
        self.look(hook)

    return look


for name in SPIED:
    setattr(Spy, name, spying(name))


def trainer(**options):
    """A Trainer that is quick and quiet."""
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return package.Trainer(**{**quiet, "log_every_n_steps": 1, **options})


def loaded(*modules):
    """Which of these this process has imported."""
    return [name for name in modules if name in sys.modules]
