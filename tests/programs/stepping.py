"""Plain loops that never heard of us; LOOP in their environment is the loop's name."""

import os

import torch

loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)


def plain():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()


def adversaries():
    first, second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (first, second)]
    for batch in loader:
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()


globals()[os.environ["LOOP"]]()
