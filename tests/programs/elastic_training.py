"""In the first round rank 1 fails; in the next all train, and rank 1 stops in its own code.

``elastic_training.py FILE``: it is there from the second round on.
"""

import os
import sys
import time
from pathlib import Path

FAILED = Path(sys.argv[1])
RANK = int(os.environ["RANK"])


def stand_still():
    time.sleep(100_000)


def train():
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.ones(4)
    for step in range(20):
        if step == 10 and RANK == 1:
            stand_still()
        dist.all_reduce(total)
        time.sleep(0.05)


if FAILED.exists():
    train()
elif RANK == 1:
    FAILED.touch()
    sys.exit("this rank fails")
else:
    stand_still()
