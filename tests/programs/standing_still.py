"""Ranks that stand still without a collective; the first argument says at what, or as what rank.

Started without a rank it is the launcher of two, which looks after nobody. queue: each rank waits
in its own. key: rank 0 is killed before it says what rank 1 waits for.
"""

import os
import queue
import signal
import subprocess
import sys
import time
from datetime import timedelta


def take_task():
    return queue.Queue().get()


def read_key(rank):
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", int(sys.argv[2]), is_master=False, timeout=timedelta(seconds=1000)
    )
    if rank == 0:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return store.get("vocabulary")


def be_rank(mode, rank):
    return read_key(rank) if mode == "key" else take_task()


def start(*words, **environment):
    return subprocess.Popen([sys.executable, __file__, *words], env={**os.environ, **environment})


def launch(mode):
    words = [mode]
    if mode == "key":
        from torch.distributed import TCPStore

        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        words.append(str(store.port))
    ranks = [
        start(*words, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        for rank in range(2)
    ]
    while any(rank.poll() is None for rank in ranks):
        time.sleep(0.2)


if os.environ.get("RANK"):
    be_rank(sys.argv[1], int(os.environ["RANK"]))
elif "RANK" in os.environ:
    take_task()
else:
    launch(sys.argv[1])
