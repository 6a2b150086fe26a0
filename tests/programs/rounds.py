"""Two ranks in rounds: the words of the command line say what happens in each round.

``raise`` or ``kill`` is the end of rank 1 before the ranks join, once rank 0 has got as far;
``lose`` is ``raise`` together with the end of the sidecar; ``hang`` stops rank 1 in its own code
after they joined; ``train`` is a round without a fault, in which nobody needs torch. With
``callback`` as first word the job is watched by the callback's own means. A round waits until
its ranks are seen.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import lightning_hangcheck as hc
from lightning_hangcheck.recorder.lifecycle import current

words = sys.argv[1:]
if words[0] == "callback":
    from lightning_hangcheck.hooks.being_watched import keep_sidecar

    words = words[1:]
    keep_sidecar(current())
seen = current().session.run_folder.run_file
while not (seen.exists() and f'"pid": {os.getpid()},' in seen.read_text()):
    time.sleep(0.01)

rank, number = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
what = words[number]
marker = Path(f"rank-0-in-round-{number}")
hc.checkpoint("started")


def fail():
    while not marker.exists():
        time.sleep(0.01)
    if what == "lose":
        facts = json.loads(current().session.sidecar_file.read_text())
        os.kill(facts["pid"], signal.SIGKILL)
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("bad sample")


def load():
    threading.Event().wait()


if what in ("raise", "kill", "lose"):
    if rank == 1:
        fail()
    marker.touch()
    signal.pause()
if what == "train":
    for _ in range(5):
        hc.beat()
if what == "hang":
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for step in range(5):
        dist.all_reduce(torch.ones(1))
        if rank == 1 and step == 3:
            load()
        hc.beat()
