"""Blocks in time.sleep, with an argument as its process name if one is given."""

import sys
import time
from pathlib import Path

from announcing import announce


def waits_in_sleep():
    announce()
    time.sleep(1000)


if len(sys.argv) > 1:
    Path("/proc/self/comm").write_text(sys.argv[1])
waits_in_sleep()
