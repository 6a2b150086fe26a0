"""Sleeps, protected from being read by processes of its own user (PR_SET_DUMPABLE 0)."""

import ctypes
import time

from announcing import announce

PR_SET_DUMPABLE = 4


def waits_protected():
    announce()
    time.sleep(1000)


ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
waits_protected()
