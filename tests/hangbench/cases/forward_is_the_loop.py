"""A learner's ``forward`` is the whole training loop, and rank 0 has one batch less."""

import torch
import torch.distributed as dist
from onset import mark_onset


class Learner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def forward(self, batches):
        for batch in batches:
            self.optimizer.zero_grad()
            self.model(batch).sum().backward()
            for parameter in self.parameters():
                dist.all_reduce(parameter.grad)
            self.optimizer.step()
        return self.meet()

    def meet(self):
        mark_onset()
        dist.barrier()


dist.init_process_group("gloo")
learner = Learner()
learner([torch.randn(4, 8) for _ in range(20 + dist.get_rank())])
dist.destroy_process_group()
