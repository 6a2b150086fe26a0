"""Rank 0 reads the corpus before rank 1 may; the function that reads it waits for all ranks."""

import torch
from lightning.fabric import Fabric
from onset import mark_onset
from torch.utils.data import DataLoader, TensorDataset


def read_corpus(fabric):
    corpus = torch.randn(64, 4)
    mark_onset()
    fabric.barrier()
    return TensorDataset(corpus)


def main():
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    with fabric.rank_zero_first():
        corpus = read_corpus(fabric)
    layer = torch.nn.Linear(4, 1)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), 0.01))
    for (batch,) in fabric.setup_dataloaders(DataLoader(corpus, batch_size=4)):
        fabric.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
