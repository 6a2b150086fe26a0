"""Waits for a thread or a lock of its own, as its argument says."""

import signal
import sys
import threading

from announcing import announce


class Counts:
    def __init__(self):
        self.lock = threading.Lock()

    def add(self, other):
        with self.lock:
            announce()
            other.report()

    def report(self):
        with self.lock:
            pass

    def interrupted(self):
        with self.lock:
            announce()
            signal.raise_signal(signal.SIGUSR1)
            self.add(self)


def join():
    threading.Thread(target=threading.Event().wait, name="another", daemon=True).start()
    timer = threading.Timer(600, print)
    timer.name, timer.daemon = "the joined one", True
    timer.start()
    announce()
    timer.join()


def handler():
    counts = Counts()
    signal.signal(signal.SIGUSR1, lambda number, frame: counts.report())
    counts.interrupted()


def others():
    first, second = Counts(), Counts()
    second.lock.acquire()
    first.add(second)


def heartbeat():
    def beat():
        while not threading.Event().wait(0.1):
            print("alive")

    def give_back():
        threading.Event().wait(600)
        lock.release()

    lock = threading.Lock()
    for name, runs in (("heartbeat", beat), ("gives back", give_back)):
        threading.Thread(target=runs, name=name, daemon=True).start()
    lock.acquire()
    announce()
    lock.acquire()


{"heartbeat": heartbeat, "join": join, "handler": handler, "others": others}[sys.argv[1]]()
