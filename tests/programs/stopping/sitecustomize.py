"""Stops the rank TEST_STOPPED_RANK, like a machine that freezes, when it writes TEST_STOPPED_AT."""

import os
import signal

_write = os.write


def _stop_there(descriptor: int, data: bytes) -> int:
    written = _write(descriptor, data)
    if os.environ["TEST_STOPPED_AT"].encode() in data:
        os.kill(os.getpid(), signal.SIGSTOP)
    return written


if os.environ.get("RANK") == os.environ.get("TEST_STOPPED_RANK", "none"):
    os.write = _stop_there
