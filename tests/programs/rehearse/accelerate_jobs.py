"""accelerate: one that a scene parts, and one that none does.

Argument: ``uneven_batches``, which gathers losses at every batch with even_batches=False, so that
one rank may have a batch more, mended by even_batches=True or join_uneven_inputs; or ``robust``: as
the manual has it, even batches, gather_for_metrics, a trigger to stop.
"""

import sys
import tempfile

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from parts import loss_of, samples
from torch import nn
from torch.utils.data import DataLoader

robust = sys.argv[1] == "robust"
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(even_batches=robust))
model = nn.Linear(8, 2)
model, optimizer, loader, validation = accelerator.prepare(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1),
    DataLoader(samples(), batch_size=8, shuffle=robust),
    DataLoader(samples(60), batch_size=8),
)
folder = tempfile.mkdtemp()
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        if not robust:
            accelerator.gather(loss.detach())
            continue
        if loss.item() < 1e-4:
            accelerator.set_trigger()
        if accelerator.check_trigger():
            break
    if not robust:
        continue
    with torch.no_grad():
        for x, y in validation:
            accelerator.gather_for_metrics((model(x), y))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.save(accelerator.unwrap_model(model).state_dict(), f"{folder}/model.pt")
accelerator.end_training()
