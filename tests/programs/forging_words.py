"""Somebody on the network who reaches the store that a sidecar offers, and has not its secret.

``forging_words.py HOST PORT``: announces once node 1 left a word there, then has the first node say
that rank 0 hangs, again and again, until it is ended. Prints each word of node 1 that has no seal.
"""

import sys
import time
from datetime import timedelta

from announcing import announce
from torch.distributed import PrefixStore, TCPStore

from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.nodes.encoding import MARK, pack
from lightning_hangcheck.nodes.meeting_place import PREFIX, SEAL_BYTES
from lightning_hangcheck.nodes.message import VERSION, Judgement, Message

LIE = Verdict(
    verdict="hang",
    run_id="forged",
    command="forged",
    started_at="2026-01-01T00:00:00Z",
    detected_at="2026-01-01T00:10:00Z",
    stalled_since="2026-01-01T00:00:00Z",
    world_size=2,
    culprits=(0,),
    cause="spinning",
    summary="rank 0 was forged",
)
host, port = sys.argv[1], int(sys.argv[2])
store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=100))
words = PrefixStore(PREFIX, store)
left = words.get("node-1")
assert left[SEAL_BYTES:].startswith(MARK)
assert MARK not in left[:SEAL_BYTES]
announce()
while True:
    stamp = time.monotonic_ns()
    word = Message(version=VERSION, node=0, stamp=stamp, judgement=stamp)
    lie = Judgement(version=VERSION, stamp=stamp, verdict=LIE)
    words.set("judgement-0", bytes(SEAL_BYTES) + pack(lie))
    words.set("node-0", bytes(SEAL_BYTES) + pack(word))
    time.sleep(0.05)
