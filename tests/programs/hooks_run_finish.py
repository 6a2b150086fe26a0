"""One process that ends wandb runs: with a frozen service, then against a server that falls mute.

The second run is left to the interpreter's exit.
"""

import atexit
import os
import signal
import sys
import time
import urllib.request

import psutil
from hooks_model import say

import lightning_hangcheck as hc


def freeze_service():
    for child in psutil.Process().children():
        if child.name() == "wandb-core":
            child.send_signal(signal.SIGSTOP)


def become(manner):
    urllib.request.urlopen(f"{os.environ['WANDB_BASE_URL']}/become/{manner}").close()  # noqa: S310 - our own server


# registered first, so it runs after wandb's hooks and ours
atexit.register(lambda: say("left"))
logger = hc.guarded_wandb_logger(project="demo", offline=True, finish_timeout=2.0)
logger.log_metrics({"loss": 0.5}, step=0)
freeze_service()
logger.experiment.finish()
say("frozen")

os.environ["WANDB_MODE"] = "online"  # Lightning set it offline for the run before
began = time.monotonic()
logger = hc.guarded_wandb_logger(project="demo", init_timeout=30.0, finish_timeout=4.0)
say("made", seconds=time.monotonic() - began, offline=logger.experiment.offline)
become("mute")
for step in range(5):
    logger.log_metrics({"loss": float(step)}, step=step)
sys.exit(3)
