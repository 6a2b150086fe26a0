"""Rank 0 finishes its guarded run; wandb's service is frozen, and the guard goes on after 14 s.

The service is thawed then: what it does at the interpreter's exit is wandb's own.
"""

import os
import signal
import tempfile

import psutil
import torch.distributed as dist

import lightning_hangcheck as hc


def tell_service(number):
    for child in psutil.Process().children(recursive=True):
        if "wandb-core" in child.name():
            child.send_signal(number)


def close_run(logger):
    logger.experiment.finish()


os.environ["WANDB_MODE"] = "offline"
logger = hc.guarded_wandb_logger(project="demo", save_dir=tempfile.mkdtemp(), finish_timeout=14.0)
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    tell_service(signal.SIGSTOP)
    close_run(logger)
    tell_service(signal.SIGCONT)
dist.barrier()
dist.destroy_process_group()
