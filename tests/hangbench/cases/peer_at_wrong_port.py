"""Rank 1 looks for the store where nobody is; rank 0 waits for it in the rendezvous."""

import os

import torch.distributed as dist
from onset import mark_onset


def join():
    if os.environ["RANK"] == "1":
        mark_onset()
        os.environ.update(MASTER_PORT="9", TORCHELASTIC_USE_AGENT_STORE="False")
    dist.init_process_group("gloo")


join()
