"""accelerate, batches not evened out: rank 1 has one less to evaluate, and begins the next epoch."""

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from onset import mark_onset
from torch.utils.data import DataLoader


def evaluate(accelerator, model, loader):
    predictions = []
    for inputs in loader:
        with torch.no_grad():
            predictions.append(accelerator.gather(accelerator.unwrap_model(model)(inputs)))
    return torch.cat(predictions).mean()


def train(accelerator):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = DataLoader(torch.randn(64, 4), batch_size=4)
    held_out = DataLoader(torch.randn(36, 4), batch_size=4)
    model, optimizer, loader, held_out = accelerator.prepare(model, optimizer, loader, held_out)
    for epoch in range(3):
        for inputs in loader:
            accelerator.backward(model(inputs).sum())
            optimizer.step()
            optimizer.zero_grad()
        mark_onset()
        print("epoch", epoch, evaluate(accelerator, model, held_out))


def main():
    config = DataLoaderConfiguration(even_batches=False)
    train(Accelerator(cpu=True, dataloader_config=config))


if __name__ == "__main__":
    main()
