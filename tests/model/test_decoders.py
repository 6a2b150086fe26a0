"""Threads that decode the same facts for the first time at once, in a process of their own."""

from __future__ import annotations

import subprocess
import sys

AT_ONCE = """
import sys, threading

sys.setswitchinterval(1e-6)
from lightning_hangcheck.nodes.encoding import pack, read_judgement, read_word
from lightning_hangcheck.nodes.word import VERSION, Judgement, Word

word, judgement = Word(version=VERSION, node=0, stamp=1), Judgement(version=VERSION, stamp=1)
told = {read_word: pack(word), read_judgement: pack(judgement)}
gate = threading.Barrier(4)


def read(work):
    gate.wait()
    work(told[work])


threads = [threading.Thread(target=read, args=(work,)) for work in (*told, *told)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_facts_that_are_first_read_by_several_threads_at_once_are_read() -> None:
    """msgspec alone reads a null pointer then, and a sidecar that hears other nodes was gone."""
    ended = subprocess.run([sys.executable, "-c", AT_ONCE], check=False, timeout=120)
    assert ended.returncode == 0
