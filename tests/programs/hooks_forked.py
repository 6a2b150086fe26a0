"""Forked ranks that have themselves watched, as HangCheck does where it is made in each of them.

The argument is how many there are; nobody tells them their number before `setup` does.
"""

import multiprocessing
import os
import signal
import sys

from announcing import announce

from lightning_hangcheck.hooks.being_watched import be_watched
from lightning_hangcheck.recorder.lifecycle import current


def train(rank):
    be_watched(current())
    current().learn_identity(rank, int(sys.argv[1]), rank)  # as `setup` does
    be_watched(current())
    announce(f"{os.getpid()} {current().session.path}")
    signal.pause()


ranks = [
    multiprocessing.get_context("fork").Process(target=train, args=(rank,))
    for rank in range(int(sys.argv[1]))
]
for process in ranks:
    process.start()
for process in ranks:
    process.join()
