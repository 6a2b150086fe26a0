"""Plain `torchrun`: it waits for its ranks, and reports the first that fails.

What counts as what:

* alarm: an uncaught exception of a rank (`[rank1]: Traceback`), torchrun's `failed (exitcode: -9)`,
  or its own failing end. A job that hangs makes it say nothing.
* culprits: the rank under `Root Cause (first observed failure)`, which is the first that torchrun
  saw fail.
* cause: a failure report stands for `process_dead`; the messages of torch and gloo for what they
  mean (MEANINGS).
* line: a traceback that shows the function.
"""

from __future__ import annotations

import re

from corpus.peers.peer import Peer, torchrun
from corpus.peers.transcript import Said, Transcript, first_alarm, heard_causes

ALARMS = (re.compile(r"\[rank\d+\]: Traceback"), re.compile(r"failed \(exitcode: "))
ROOT_CAUSE = re.compile(r"^Root Cause")
RANK = re.compile(r"^\s+rank\s+: (\d+) ")
MEANINGS = (
    (re.compile(r"failed \(exitcode: "), "process_dead"),
    (re.compile(r"DataLoader worker .*(exited unexpectedly|is killed)"), "dataloader_worker"),
    (re.compile(r"connectFullMesh failed|wait timeout after .*default_pg"), "rendezvous"),
    (re.compile(r"waiting for clients|client socket has timed out"), "rendezvous"),
)


def hear(transcript: Transcript) -> Said:
    """Understand what torchrun printed."""
    alarm = first_alarm(transcript, ALARMS)
    if alarm is None:
        return Said()
    rank = root_cause(transcript)
    return Said(
        at_s=alarm.at_s,
        culprits=[] if rank is None else [[rank]],
        causes=heard_causes(transcript, MEANINGS),
        words=alarm.text,
    )


def root_cause(transcript: Transcript) -> int | None:
    """The rank that torchrun calls the root cause."""
    texts = [line.text for line in transcript.lines]
    starts = [number for number, text in enumerate(texts) if ROOT_CAUSE.match(text)]
    for text in texts[starts[-1] :] if starts else []:
        if match := RANK.match(text):
            return int(match.group(1))
    return None


PEER = Peer(name="torchrun", distribution="torch", launcher=torchrun, hear=hear)
