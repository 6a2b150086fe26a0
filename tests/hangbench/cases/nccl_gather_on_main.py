"""accelerate: the main process alone gathers a metric, which meets the others' all-reduce."""

import one_gpu  # noqa: F401 - sets the environment
import torch
from accelerate import Accelerator
from onset import mark_onset
from torch.utils.data import DataLoader

accelerator = Accelerator()
model = torch.nn.Linear(32, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(torch.randn(800, 32), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def report(step, loss):
    if accelerator.is_main_process:
        mark_onset()
        values = accelerator.gather(loss.detach().reshape(1))
        print(step, values.mean().item(), flush=True)


for step, batch in enumerate(loader):
    loss = model(batch).pow(2).mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    if step == 50:
        report(step, loss)
    if step % 10 == 0:
        accelerator.print(step, loss.item(), flush=True)
