"""accelerate: the main process saves after each epoch, all others wait for everyone."""

import torch
from accelerate import Accelerator
from onset import mark_onset


def train(accelerator):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    loader = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        for inputs in loader:
            accelerator.backward(model(inputs).sum())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.is_main_process:
            print("epoch", epoch, accelerator.get_state_dict(model).keys())
        else:
            mark_onset()
            accelerator.wait_for_everyone()


def main():
    train(Accelerator(cpu=True))


if __name__ == "__main__":
    main()
