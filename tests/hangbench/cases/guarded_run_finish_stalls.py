"""Rank 0 finishes its guarded run, with 90 seconds for it; the service of wandb is frozen."""

import os
import signal
import tempfile

import psutil
import torch.distributed as dist
from onset import mark_onset

import lightning_hangcheck as hc


def freeze_service():
    for child in psutil.Process().children(recursive=True):
        if "wandb-core" in child.name():
            child.send_signal(signal.SIGSTOP)


def close_run(logger):
    mark_onset()
    logger.experiment.finish()


os.environ["WANDB_MODE"] = "offline"
logger = hc.guarded_wandb_logger(project="demo", save_dir=tempfile.mkdtemp(), finish_timeout=90.0)
dist.init_process_group("gloo")
if dist.get_rank() == 0:
    freeze_service()
    close_run(logger)
dist.barrier()
dist.destroy_process_group()
