"""Rank 1 looks for the store where nobody is; rank 0 waits for it in the rendezvous."""

import os

import torch.distributed as dist


def join():
    if os.environ["RANK"] == "1":
        os.environ.update(MASTER_PORT="9", TORCHELASTIC_USE_AGENT_STORE="False")
    dist.init_process_group("gloo")


join()
