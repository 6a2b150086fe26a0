"""Plain loops that never heard of us; each prints what it ends with, and stays for who looks.

``stepping.py LOOP``: the loop's name. It announces itself after its steps and waits for a line.
"""

import sys

import gloo
import torch
from announcing import announce

loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=2)


def plain(steps=4):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()
    return model.bias


def adversaries():
    first, second = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in (first, second)]
    for batch in loader:
        for model, optimizer in zip((first, second), optimizers, strict=True):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    return first.bias


def stages():
    model = torch.nn.Linear(4, 1)
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for batch in list(loader)[:2]:
            model(batch).sum().backward()
            optimizer.step()
    return model.bias


def ddp():
    gloo.join()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
    return model.module.bias


def fabric():
    from lightning.fabric import Fabric

    one = Fabric(accelerator="cpu", devices=1)
    model = torch.nn.Linear(4, 1)
    model, optimizer = one.setup(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for batch in one.setup_dataloaders(loader):
        one.backward(model(batch).sum())
        optimizer.step()
    return model.bias


def accelerate():
    from accelerate import Accelerator

    one = Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    model, optimizer, batches = one.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), loader
    )
    for batch in batches:
        optimizer.zero_grad()
        one.backward(model(batch).sum())
        optimizer.step()
    return next(model.parameters())


def by_hand():
    import lightning_hangcheck as hc

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in loader:
        hc.beat()
        model(batch).sum().backward()
        optimizer.step()
    return model.bias


def compiled():
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    for batch in loader:
        model(batch).sum().backward()
        step()
    return model.bias


torch.manual_seed(0)
end = globals()[sys.argv[1]]().sum().item()
announce()
sys.stdin.readline()
sys.stdout.write(f"{end:.6f}\n")
gloo.leave()
