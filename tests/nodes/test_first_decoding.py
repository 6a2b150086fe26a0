"""What several threads decode for the first time at the same moment; each place has a thread."""

from __future__ import annotations

import subprocess
import sys

THREADS = """
import sys, threading
sys.setswitchinterval(1e-6)
from lightning_hangcheck.nodes.digest import NodeDigest, NodeState
from lightning_hangcheck.nodes.encoding import JudgesWord, pack, unpack, unpack_word
word, digest = JudgesWord(stamp=1), NodeDigest(nodes=(NodeState(node=1, stamp=2),))
packed = pack(word), pack(digest)
begin, read = threading.Barrier(6), []
def decode():
    begin.wait()
    read.append((unpack_word(packed[0]), unpack(packed[1])[0]) == (word, digest))
threads = [threading.Thread(target=decode) for _ in range(6)]
for one in threads: one.start()
for one in threads: one.join()
print(read)
"""


def test_two_places_may_be_read_at_once_from_the_first_word_on() -> None:
    """Each of twelve such processes ended with SIGSEGV where msgspec prepared the types then."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, str([True] * 6)), done.stderr
