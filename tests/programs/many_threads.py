"""As many threads as its argument says, all waiting for one event."""

import sys
import threading

from announcing import announce

event = threading.Event()
count = int(sys.argv[1])
all_there = threading.Barrier(count + 1)


def waits_in_thread():
    all_there.wait()
    event.wait()


def waits_in_main():
    all_there.wait()
    announce()
    event.wait()


for number in range(count):
    threading.Thread(target=waits_in_thread, name=f"thread {number}").start()
waits_in_main()
