"""A process that ends a wandb run against a server that falls mute: by itself, or at its exit."""

import atexit
import os
import sys
import time
import urllib.request

from saying import say

import lightning_hangcheck as hc


def become(manner):
    urllib.request.urlopen(f"{os.environ['WANDB_BASE_URL']}/become/{manner}").close()  # noqa: S310 - our own server


# registered first, so it runs after wandb's hooks and ours
atexit.register(lambda: say("left"))
began = time.monotonic()
logger = hc.guarded_wandb_logger(project="demo", init_timeout=30.0, finish_timeout=4.0)
say("made", seconds=time.monotonic() - began, offline=logger.experiment.offline)
become("mute")
for step in range(5):
    logger.log_metrics({"loss": float(step)}, step=step)
if sys.argv[1] == "by itself":
    began = time.monotonic()
    logger.experiment.finish(exit_code=3)
    say("finished", seconds=time.monotonic() - began)
sys.exit(3)
