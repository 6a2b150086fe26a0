"""Two ranks that stand still without a collective, each in its own queue.

Started without a rank it is their launcher, which looks after nobody.
"""

import os
import queue
import subprocess
import sys
import time


def take_task():
    return queue.Queue().get()


def launch():
    numbered = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    size = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen([sys.executable, __file__], env={**os.environ, **size, **one})
        for one in numbered
    ]
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.2)


if "RANK" in os.environ:
    take_task()
else:
    launch()
