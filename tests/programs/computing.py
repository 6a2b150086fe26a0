"""Ranks that never beat and never meet, all busy in pure Python. ``computing.py HOW SECONDS``.

``yielding``: every rank yields to others again and again, and waits for its own list.
``changing``: it computes for so long, in ever other functions, and ends well. ``uneven``: rank 0
does so, and the others wait for it in a barrier.
"""

import os
import sys
import time


def yielding(_):
    answers = []
    while not answers:
        time.sleep(0)


def changing(seconds):
    """Work through chapters of a data set, each with code of its own."""
    end, chapter = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        chapter += 1
        names = {}
        exec(CHAPTER.format(chapter=chapter), names)  # noqa: S102 - ours, ever other functions
        names[f"chapter_{chapter}"](time.monotonic() + 1.0)
    return chapter


def uneven(seconds):
    import gloo
    from torch import distributed

    gloo.join()
    if os.environ["RANK"] == "0":
        changing(seconds)
    distributed.barrier()
    gloo.leave()


CHAPTER = """
def parse_{chapter}(text):
    return sum(ord(letter) * {chapter} for letter in text)

def count_{chapter}(lines):
    return sum(parse_{chapter}(line) for line in lines)

def chapter_{chapter}(end):
    from time import monotonic
    while monotonic() < end:
        count_{chapter}(["some words"] * 200)
"""


globals()[sys.argv[1]](float(sys.argv[2]))
sys.stdout.write("done\n")
