"""Rank 1 has fewer batches, finishes and leaves; Lightning's progress bar asks the GPU of rank 0."""

import one_gpu
import pytorch_lightning as pl
import torch
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 1))

    def training_step(self, batch, _):
        loss = self.layers(batch[0]).pow(2).mean()
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


samples = 400 if one_gpu.rank == "1" else 640
trainer = pl.Trainer(
    accelerator="gpu",
    devices=1,
    num_nodes=2,
    strategy="ddp",
    max_epochs=1,
    use_distributed_sampler=False,
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(Net(), DataLoader(TensorDataset(torch.randn(samples, 64)), batch_size=4))
mark_onset()
