"""A callback of Lightning's saves on rank 0 alone; `save_checkpoint` has a barrier."""

import one_gpu  # noqa: F401 - sets the environment
import pytorch_lightning as pl
import torch
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Saver(pl.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.is_global_zero and batch_idx == 60:
            mark_onset()
            trainer.save_checkpoint("best.ckpt")


trainer = pl.Trainer(
    accelerator="gpu",
    devices=1,
    num_nodes=2,
    strategy="ddp",
    max_epochs=1,
    logger=False,
    callbacks=[Saver()],
    enable_checkpointing=False,
    enable_model_summary=False,
)
data = TensorDataset(torch.randn(800, 64))
trainer.fit(Net(), DataLoader(data, batch_size=4, num_workers=2))
