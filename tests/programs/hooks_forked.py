"""Forked ranks that have themselves watched, as HangCheck does where it is made in each of them.

Arguments: ``told``: they set their variables themselves; or ``untold``; and how many there are.
"""

import multiprocessing
import os
import signal
import sys

from announcing import announce

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.recorder.lifecycle import current


def train(rank):
    if sys.argv[1] == "told":
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        os.environ["MASTER_PORT"] = str(os.getppid())
    be_watched(current())
    if sys.argv[1] != "told":  # as `setup` does
        current().learn_identity(rank, int(sys.argv[2]), rank)
        be_watched(current())
    announce(f"{os.getpid()} {current().session.path}")
    signal.pause()


ranks = [
    multiprocessing.get_context("fork").Process(target=train, args=(rank,))
    for rank in range(int(sys.argv[2]))
]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
