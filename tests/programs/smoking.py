"""So many ranks with so many workers; one rank stops itself, fails or waits if a condition holds.

Words: ranks, workers, when (``workers``, ``ranks``, ``always``, ``never``), what (``stop``,
``fail``, ``wait``).
"""

import os
import signal
import subprocess
import sys
import threading

import lightning_hangcheck as hc

devices, workers, when, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
holds = {"workers": workers > 0, "ranks": devices > 1, "always": True, "never": False}[when]


def train():
    hc.checkpoint("Script started")
    if not holds or os.environ["RANK"] != str(devices - 1):
        return
    if what == "fail":
        raise ValueError("no such split")
    if what == "wait":
        threading.Event().wait()
    os.kill(os.getpid(), signal.SIGSTOP)


def launch():
    told = {"WORLD_SIZE": str(devices), "LOCAL_WORLD_SIZE": str(devices)}
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv],
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
        )
        for rank in range(devices)
    ]
    sys.exit(max([abs(process.wait()) for process in ranks]))


train() if "RANK" in os.environ else launch()
