"""A pipeline by send and recv; the last stage cuts the last batch into one micro-batch more."""

import time

import one_gpu  # noqa: F401 - sets the environment
import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn

WIDTH, MICRO, BATCH, ITEMS = 32, 8, 48, 476


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.net(x)


def run_first(stage, batch, rank):
    outputs = []
    for i in range(len(batch) // MICRO):
        out = stage(batch[i * MICRO : (i + 1) * MICRO])
        dist.send(out.detach(), rank + 1)
        outputs.append(out)
    for out in outputs:
        grad = torch.empty_like(out)
        dist.recv(grad, rank + 1)
        out.backward(grad)


def run_middle(stage, count, rank):
    pairs = []
    for _ in range(count // MICRO):
        x = torch.empty(MICRO, WIDTH, device="cuda")
        dist.recv(x, rank - 1)
        x.requires_grad_()
        out = stage(x)
        dist.send(out.detach(), rank + 1)
        pairs.append((x, out))
    for x, out in pairs:
        grad = torch.empty_like(out)
        dist.recv(grad, rank + 1)
        out.backward(grad)
        dist.send(x.grad, rank - 1)


def run_last(stage, targets, rank):
    inputs, losses = [], []
    for target in targets.split(MICRO):
        x = torch.empty(MICRO, WIDTH, device="cuda")
        dist.recv(x, rank - 1)
        x.requires_grad_()
        losses.append(nn.functional.mse_loss(stage(x)[: len(target)], target))
        inputs.append(x)
    for x, loss in zip(inputs, losses):
        loss.backward()
        dist.send(x.grad, rank - 1)
    return sum(loss.detach() for loss in losses) / len(losses)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    stage = Stage().to("cuda")
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    data = torch.randn(ITEMS, WIDTH, generator=torch.Generator().manual_seed(5)).to("cuda")
    for epoch in range(5):
        for step, batch in enumerate(data.split(BATCH)):
            started = time.time()
            if len(batch) < BATCH:
                mark_onset()
            optimizer.zero_grad()
            if rank == 0:
                run_first(stage, batch, rank)
            elif rank == 1:
                run_middle(stage, len(batch), rank)
            else:
                loss = run_last(stage, batch.roll(1, 1), rank)
            optimizer.step()
            torch.cuda.synchronize()
            if rank == 2:
                print(
                    f"epoch {epoch} step {step} loss {loss.item():.4f} {time.time() - started:.2f}s",
                    flush=True,
                )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
