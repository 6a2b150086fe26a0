"""Ranks that stand still without a collective; the first argument says at what, or as what rank.

Started without a rank it is the launcher, which looks after nobody: ``alone`` starts one process
with a child and no ranks, all others two ranks. queue: each rank in its own. flag: both ask
for a file that nobody writes. key: rank 0 is killed before it says what rank 1 waits for. leaving:
rank 1 leaves, and rank 0 cannot end for a thread of its own. marked: both wait until a file is gone
whose maker has ended.
"""

import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

FOLDER = Path(tempfile.gettempdir())


def take_task():
    return queue.Queue().get()


def wait_for_flag():
    while not (FOLDER / "a-flag-that-nobody-writes").exists():
        time.sleep(0.2)


def read_key(rank):
    from torch.distributed import TCPStore

    store = TCPStore(
        "127.0.0.1", int(sys.argv[2]), is_master=False, timeout=timedelta(seconds=1000)
    )
    if rank == 0:
        time.sleep(2)
        os.kill(os.getpid(), signal.SIGKILL)
    return store.get("vocabulary")


def leave(rank):
    if rank == 0:
        threading.Thread(target=threading.Event().wait).start()


def be_rank(mode, rank):
    if mode == "key":
        return read_key(rank)
    if mode == "leaving":
        return leave(rank)
    return {"queue": take_task, "flag": wait_for_flag}[mode]()


def start(*words, **environment):
    return subprocess.Popen([sys.executable, __file__, *words], env={**os.environ, **environment})


def launch(mode):
    words = [mode]
    if mode == "alone":
        start("queue", RANK="", WORLD_SIZE="").wait()
        return
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
