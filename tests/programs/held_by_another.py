"""Two threads each want the lock of an object that the other has; others tick, or join one."""

import threading
import time

from announcing import announce

both = threading.Barrier(2)


class Shard:
    def __init__(self):
        self.lock = threading.Lock()

    def copy_to(self, other):
        with self.lock:
            both.wait()
            if threading.current_thread() is threading.main_thread():
                announce()
            other.clear()

    def clear(self):
        with self.lock:
            pass


def tick():
    while True:
        time.sleep(0.05)


def take_turns():
    while True:
        with turn:
            time.sleep(0.05)


def thread(run, name):
    threading.Thread(target=run, name=name, daemon=True).start()


turn, first, second = threading.Lock(), Shard(), Shard()
timer = threading.Timer(600, print)
timer.name, timer.daemon = "the joined one", True
timer.start()
thread(timer.join, "joins")
thread(tick, "heartbeat")
thread(take_turns, "turn 0")
thread(take_turns, "turn 1")
thread(lambda: second.copy_to(first), "the other")
first.copy_to(second)
