"""Burns the processor in a Python loop."""

from announcing import announce


def spins():
    announce()
    number = 0
    while True:
        number += 1


spins()
