"""Sleep half a millisecond at a time, now on one processor, now on another."""

import itertools
import os
import time

from announcing import announce

allowed = sorted(os.sched_getaffinity(0))
announce()
for processor in itertools.cycle(allowed):
    os.sched_setaffinity(0, {processor})
    time.sleep(0.0005)
