"""Blocks in reading a FIFO that nobody writes to."""

import os
import sys

from announcing import announce


def reads_the_fifo(path):
    descriptor = os.open(path, os.O_RDWR)
    announce()
    os.read(descriptor, 1)


reads_the_fifo(sys.argv[1])
