"""A callback's teardown waits for its plotting thread with the lock that this thread wants."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Plots(Callback):
    def __init__(self):
        self.executor = None
        self.figures = threading.Lock()
        self.drawn = []

    def setup(self, trainer, module, stage):
        if trainer.is_global_zero:
            self.executor = ThreadPoolExecutor(1, thread_name_prefix="plots")

    def draw(self, weights):
        time.sleep(2)
        with self.figures:
            self.drawn.append(weights.sum())

    def on_train_end(self, trainer, module):
        if self.executor is not None:
            self.executor.submit(self.draw, module.layer.weight.detach().clone())

    def teardown(self, trainer, module, stage):
        if self.executor is not None:
            with self.figures:
                mark_onset()
                self.executor.shutdown(wait=True)


class Regressor(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).sum()

    def test_step(self, batch, index):
        self.log("test_loss", self.layer(batch[0]).sum(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4)
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[Plots()],
    )
    model = Regressor()
    trainer.fit(model, loader)
    trainer.test(model, loader)


if __name__ == "__main__":
    main()
