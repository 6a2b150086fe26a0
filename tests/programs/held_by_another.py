"""Waits for a lock that another of its threads has, as its argument says; others tick beside it."""

import subprocess
import sys
import threading
import time

from announcing import announce

cache, index = threading.Lock(), threading.RLock()
both = threading.Barrier(2)


class Shard:
    def __init__(self):
        self.lock = threading.Lock()
        self.filled = threading.Condition()

    def copy_to(self, other):
        with self.lock:
            both.wait()
            if threading.current_thread() is threading.main_thread():
                announce()
            other.clear()

    def clear(self):
        with self.lock:
            pass

    def fill(self):
        with self.filled:
            both.wait()
            self.filled.notify()
            announce()
            subprocess.run(["sleep", "600"], check=False)

    def take(self):
        with self.filled:
            thread(self.fill, "the other")
            while True:
                self.filled.wait()

    def wait_until_filled(self):
        thread(self.take, "taker")
        both.wait()
        with self.filled:
            pass


def tick():
    while True:
        time.sleep(0.05)


def take_turns():
    turn = threading.Lock()
    for number in range(2):
        thread(lambda: endless(turn), f"turn {number}")


def endless(turn):
    while True:
        with turn:
            time.sleep(0.05)


def thread(run, name):
    threading.Thread(target=run, name=name, daemon=True).start()


def rebuild_index():
    with index:
        both.wait()
        with cache:
            pass


def in_file():
    thread(rebuild_index, "the other")
    index_after_cache()


def index_after_cache():
    with cache:
        both.wait()
        announce()
        index.acquire()


def in_objects():
    first, second = Shard(), Shard()
    thread(lambda: second.copy_to(first), "the other")
    first.copy_to(second)


def in_closures():
    lock = threading.Lock()

    def hold():
        with lock:
            both.wait()
            time.sleep(600)

    def want():
        both.wait()
        announce()
        with lock:
            pass

    thread(hold, "the other")
    want()


def other_object():
    first, second = Shard(), Shard()
    second.lock.acquire()
    thread(lambda: first.copy_to(second), "the other")
    both.wait()
    announce()
    second.clear()


thread(tick, "heartbeat")
take_turns()
{
    "file": in_file,
    "objects": in_objects,
    "closures": in_closures,
    "condition": Shard().wait_until_filled,
    "other": other_object,
}[sys.argv[1]]()
