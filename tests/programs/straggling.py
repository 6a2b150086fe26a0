"""Trains two ranks with Lightning, of which rank 1 waits long for each batch; with its metrics.

Argument: the logger, one of csv, tensorboard, wandb.
"""

import importlib
import os
import sys
import time

import gloo
import hooks_model
import torch
from hooks_model import package

import lightning_hangcheck as hc

RANK = int(os.environ["LOCAL_RANK"])
LOADER_S = (0.01, 0.3)


class Batches(torch.utils.data.Dataset):
    """Its items take as long as this rank's storage does."""

    def __len__(self):
        return 64

    def __getitem__(self, _):
        time.sleep(LOADER_S[RANK])
        return torch.ones(4)


def logger():
    """The one that was named."""
    loggers = importlib.import_module(f"{package.__name__}.loggers")
    if sys.argv[1] == "csv":
        return loggers.CSVLogger("logged")
    if sys.argv[1] == "tensorboard":
        return loggers.TensorBoardLogger("logged")
    return loggers.WandbLogger(save_dir="logged", offline=True)


package.Trainer(
    accelerator="cpu",
    devices=2,
    strategy="ddp",
    logger=logger(),
    max_epochs=1,
    log_every_n_steps=4,
    callbacks=[hc.HangCheck(log_metrics=True)],
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
).fit(hooks_model.Tiny(), torch.utils.data.DataLoader(Batches()))
gloo.leave()
