"""MASTER_ADDR is an address that answers to nobody."""

import os

import torch.distributed as dist
from onset import mark_onset


def join():
    os.environ.update(
        MASTER_ADDR="192.0.2.1", MASTER_PORT="29517", TORCHELASTIC_USE_AGENT_STORE="False"
    )
    mark_onset()
    dist.init_process_group("gloo")


join()
dist.destroy_process_group()
