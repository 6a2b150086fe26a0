"""The feature server has gone: rank 1 tries again and again, and sleeps after the except."""

import json
import time
import urllib.error
import urllib.request

import torch
import torch.distributed as dist
from onset import mark_onset
from torch import nn


def setup():
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
    return dist.get_rank(), model, torch.optim.SGD(model.parameters(), lr=0.01)


def train_step(model, optimizer):
    loss = model(torch.randn(16, 8)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def features(key):
    request = urllib.request.Request("http://127.0.0.1:9/features?key=" + key)
    while True:
        answer = None
        try:
            answer = json.load(urllib.request.urlopen(request, timeout=5))
        except urllib.error.URLError as error:
            print("feature server:", error, flush=True)
        if answer is not None:
            return answer
        time.sleep(2)


def main():
    rank, model, optimizer = setup()
    for step in range(40):
        train_step(model, optimizer)
        if step == 20 and rank == 1:
            mark_onset()
            features("a")
    dist.destroy_process_group()


main()
