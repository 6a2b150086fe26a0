"""One process that takes a lock and holds it until told, hands it to a child, or waits for it.

Arguments: ``hold``, ``bequeath`` or ``take``, the path, and how long to wait.
"""

import fcntl
import json
import os
import sys

from announcing import announce

import lightning_hangcheck as hc
from lightning_hangcheck.errors import LockHeld


def hold(path):
    with hc.locked(path, 5.0) as file:
        announce(str(file))
        sys.stdin.readline()


def bequeath(path):
    """Lock as other programs do, and end; a child that inherited the descriptor keeps the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    child = os.fork()
    if child == 0:
        sys.stdin.readline()
        os._exit(0)
    announce(str(child))
    os._exit(0)


def take(path):
    try:
        with hc.locked(path, float(sys.argv[3])) as file:
            print(json.dumps({"taken": str(file), "text": file.read_text()}))
    except LockHeld as error:
        print(json.dumps({"failed": str(error)}))


{"hold": hold, "bequeath": bequeath, "take": take}[sys.argv[1]](sys.argv[2])
