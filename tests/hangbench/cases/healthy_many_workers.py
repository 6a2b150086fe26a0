"""One of eighteen workers takes long for a sample from the archive; the others have delivered."""

import multiprocessing
import time

import torch
from torch.utils.data import DataLoader, Dataset

WORKERS = 18


class Samples(Dataset):
    def __len__(self):
        return 4 * WORKERS

    def __getitem__(self, index):
        if index == 2 * WORKERS - 1:
            time.sleep(15)
        return torch.full((4,), float(index))


def main():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data"])
    loader = DataLoader(Samples(), num_workers=WORKERS, multiprocessing_context=context)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in loader:
        model(batch).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    print("trained", flush=True)


if __name__ == "__main__":
    main()
