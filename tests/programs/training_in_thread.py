"""Training that stands still in a thread, while another one that it started prefetches.

Run by itself it trains in a thread, too, and waits for it in the user's own code.
"""

import sys
import threading
import time

from announcing import announce

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

LONG_S = 100_000


def prefetch():
    time.sleep(LONG_S)


def stand_still():
    announce()
    time.sleep(LONG_S)


def load():
    with hc.section("model from_pretrained (AutoModel)"):
        announce(current().session.path)
        time.sleep(LONG_S)


def train():
    threading.Thread(target=prefetch, daemon=True).start()
    stand_still()


def begin():
    current().begin_training()
    announce(current().session.path)


def return_well():
    begin()
    sys.stdin.readline()


def raise_within():
    begin()
    sys.stdin.readline()
    raise ValueError("no such split")


def train_on():
    begin()
    time.sleep(LONG_S)


def wait_for(thread):
    while thread.is_alive():
        time.sleep(0.05)


if __name__ == "__main__":
    training = threading.Thread(target=train, daemon=True)
    training.start()
    wait_for(training)
