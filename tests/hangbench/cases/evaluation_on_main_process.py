"""Only the main process evaluates, and gathers predictions there with accelerate."""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from onset import mark_onset


def evaluate(accelerator, model):
    predictions = model(torch.ones(2, 4))
    return accelerator.gather_for_metrics(predictions)


accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
model, optimizer = accelerator.prepare(model, optimizer)
for step in range(1000):
    accelerator.backward(model(torch.ones(2, 4)).sum())
    optimizer.step()
    if accelerator.is_main_process and step == 20:
        mark_onset()
        evaluate(accelerator, model)
dist.destroy_process_group()
