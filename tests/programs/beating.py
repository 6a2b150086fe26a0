"""A rank without torch: it takes steps for a while, then ends or stands still.

``beating.py SECONDS [still]``
"""

import sys
import time

import lightning_hangcheck as hc


def stand_still():
    time.sleep(100_000)


until = time.monotonic() + float(sys.argv[1])
hc.checkpoint("Steps begin")
while time.monotonic() < until:
    hc.beat()
    time.sleep(0.05)
if "still" in sys.argv:
    stand_still()
