"""accelerate: rank 1 leaves out a batch of NaN, and so its backward; later it gathers alone."""

import one_gpu  # noqa: F401 - sets the environment
import torch
from accelerate import Accelerator
from onset import mark_onset
from torch import nn
from torch.utils.data import DataLoader, Dataset

LOG_EVERY = 10


class Recordings(Dataset):
    """Windows of a sensor's recordings; one of them was cut off while it was written."""

    def __init__(self, n=800, width=96):
        g = torch.Generator().manual_seed(7)
        self.clean = torch.randn(n, width, generator=g).cumsum(1)
        self.clean[251, 40:] = float("nan")

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        clean = self.clean[i]
        return clean + 0.1 * torch.randn_like(clean), clean


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(width, 160), nn.SiLU(), nn.Linear(160, width))

    def forward(self, x):
        return x + self.net(x)


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Recordings(), batch_size=8, num_workers=1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    skipped = 0
    for epoch in range(3):
        for step, (noisy, clean) in enumerate(loader):
            loss = nn.functional.mse_loss(model(noisy), clean)
            if torch.isnan(loss):
                skipped += 1
                mark_onset()
                print(f"rank {accelerator.process_index}: NaN in step {step}, left out", flush=True)
                continue
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            if step % LOG_EVERY == 0:
                mean = accelerator.gather(loss.detach().view(1)).mean()
                value = mean.item()
                accelerator.print(f"epoch {epoch} step {step} loss {value:.4f}", flush=True)
        accelerator.print(f"epoch {epoch} done, {skipped} left out")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
