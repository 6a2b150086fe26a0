"""Rank 0 pipes its checkpoint into a program that stops taking it; the others wait for the save."""

import subprocess
import sys

import torch
import torch.distributed as dist
from onset import mark_onset

TAKES = 200_000
UPLOADER = f"import sys, time; sys.stdin.buffer.read({TAKES}); time.sleep(600)"


def save_checkpoint(state):
    uploader = subprocess.Popen([sys.executable, "-c", UPLOADER], stdin=subprocess.PIPE)
    mark_onset()
    torch.save(state, uploader.stdin)
    uploader.stdin.close()
    uploader.wait()


def main():
    dist.init_process_group("gloo")
    model = torch.nn.Linear(512, 512)
    for step in range(30):
        model(torch.randn(8, 512)).sum().backward()
        dist.all_reduce(model.weight.grad)
        model.zero_grad()
        if step == 20:
            if dist.get_rank() == 0:
                save_checkpoint(model.state_dict())
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
