"""Is stopped by SIGSTOP in the middle of a function."""

import os
import signal

from announcing import announce


def stops_here():
    announce()
    os.kill(os.getpid(), signal.SIGSTOP)


stops_here()
