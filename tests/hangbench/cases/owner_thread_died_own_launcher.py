"""Lightning starts its second rank itself; a thread that owns a vocabulary dies of an error.

Each checkpoint asks that thread for the vocabulary, on both ranks. Beside the main thread of rank 0
only Lightning's observer of its children is left, which ends no wait.
"""

import queue
import threading

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class VocabularyOwner(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.asked, self.answers, self.counts = queue.Queue(), queue.Queue(), {}

    def run(self):
        while True:
            epoch = self.asked.get()
            if epoch == 2:
                self.forget_rare()
            self.answers.put(dict(self.counts))

    def forget_rare(self):
        for word, count in self.counts.items():
            if count == 1:
                mark_onset()
                del self.counts[word]  # RuntimeError: changed size during iteration

    def state(self, epoch):
        self.asked.put(epoch)
        return self.answers.get()


class Regression(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def setup(self, stage):
        self.vocabulary = VocabularyOwner()
        self.vocabulary.start()

    def training_step(self, batch, index):
        self.vocabulary.counts[f"word {index}"] = 1
        return self.layer(batch[0]).square().mean()

    def on_save_checkpoint(self, checkpoint):
        checkpoint["vocabulary"] = self.vocabulary.state(self.current_epoch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.01)


def main():
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=9,
        logger=False,
        enable_progress_bar=False,
        callbacks=[ModelCheckpoint(dirpath="checkpoints", every_n_epochs=1)],
    )
    trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(640, 8)), batch_size=8))


if __name__ == "__main__":
    main()
