"""Two threads that each hold a lock which the other one wants."""

import threading

from announcing import announce

first, second = threading.Lock(), threading.Lock()
both_hold = threading.Barrier(2)


def wants_second():
    with first:
        both_hold.wait()
        announce()
        second.acquire()


def wants_first():
    with second:
        both_hold.wait()
        first.acquire()


threading.Thread(target=wants_first, name="other side").start()
wants_second()
