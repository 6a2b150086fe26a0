"""One process that takes a lock and holds it until told, or waits for it.

Arguments: ``hold`` or ``take``, the path, and how long to wait.
"""

import json
import sys

from announcing import announce

import lightning_hangcheck as hc
from lightning_hangcheck.errors import LockHeld


def hold(path):
    with hc.locked(path, 5.0) as file:
        announce(str(file))
        sys.stdin.readline()


def take(path):
    try:
        with hc.locked(path, float(sys.argv[3])) as file:
            print(json.dumps({"taken": str(file), "text": file.read_text()}))
    except LockHeld as error:
        print(json.dumps({"failed": str(error)}))


{"hold": hold, "take": take}[sys.argv[1]](sys.argv[2])
