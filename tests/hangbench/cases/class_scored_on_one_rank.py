"""Rank 2 alone met a rare class; scores are gathered class by class, so it gathers once more."""

import torch
import torch.distributed as dist
from onset import mark_onset
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def data():
    labels = torch.arange(96) % 3
    labels[95] = 7
    return TensorDataset(torch.randn(96, 4), labels)


def gather_scores(scores):
    everywhere = {}
    for name in sorted(scores):
        found = [None] * dist.get_world_size()
        dist.all_gather_object(found, scores[name])
        everywhere[name] = sum(found) / len(found)
    return everywhere


def train(model, optimizer, loader):
    seen = set()
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.update(labels.tolist())
    return {f"recall/{label}": 1.0 for label in seen}


def main():
    dist.init_process_group("gloo")
    dataset = data()
    sampler = DistributedSampler(dataset, shuffle=False)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(torch.nn.Linear(4, 8))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(3):
        scores = train(model, optimizer, loader)
        mark_onset()
        everywhere = gather_scores(scores)
        if dist.get_rank() == 0:
            print("epoch", epoch, everywhere)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
