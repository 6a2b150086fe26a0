"""A parent that waits for two workers, forked by multiprocessing, of which each sleeps."""

import multiprocessing
import os
import time

from announcing import announce


def works_forever(number):
    announce(f"worker {number} {os.getpid()}")
    time.sleep(1000)


def waits_for_workers(workers):
    announce("parent")
    for worker in workers:
        worker.join()


context = multiprocessing.get_context("fork")
children = [context.Process(target=works_forever, args=(number,)) for number in range(2)]
for child in children:
    child.start()
waits_for_workers(children)
