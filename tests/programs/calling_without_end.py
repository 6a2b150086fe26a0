"""Calls and returns without end, so that whoever reads its stack reads it in the middle of that."""

import random

from announcing import announce


def down(depth):
    return across(depth - 1) if depth > 0 else 0


def across(depth):
    return down(depth - 1) if depth > 0 else 0


def calls_without_end():
    announce()
    while True:
        down(random.randrange(60))


calls_without_end()
