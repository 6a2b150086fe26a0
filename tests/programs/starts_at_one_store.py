"""Serves a store as torchrun's agent does, and starts ranks of a job there, round after round.

Argument: a JSON list of rounds, each a list of [rank, TORCHELASTIC_RESTART_COUNT, steps]; a step is
["first", seconds that rank 0 takes] or ["leave"]. Prints a line a step, the ranks' round with it.
"""

import json
import os
import sys
import time

from torch.distributed import TCPStore

import lightning_hangcheck as hc
from lightning_hangcheck.errors import MeetingFailed


def act(number, rank, count, steps):
    os.environ.update(
        RANK=str(rank), GROUP_RANK=str(rank), LOCAL_RANK="0", TORCHELASTIC_RESTART_COUNT=str(count)
    )
    for name, *arguments in steps:
        if name == "leave":
            os._exit(1)
        line = {"round": number, "rank": rank}
        try:
            with hc.rank_zero_first("tokenizer", 10.0):
                line["began"] = time.monotonic()
                time.sleep(arguments[0] if rank == 0 else 0.0)
                line["ended"] = time.monotonic()  # before the other is let in
        except MeetingFailed as error:
            line["failed"] = str(error)
        os.write(1, (json.dumps(line) + "\n").encode())


def start(number, ranks):
    """Each rank is a process of its own, that has loaded torch already."""
    pids = []
    for rank, count, steps in ranks:
        pid = os.fork()
        if not pid:
            act(number, rank, count, steps)
            sys.exit()
        pids.append(pid)
    for pid in pids:
        os.waitpid(pid, 0)


store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
os.environ.update(
    WORLD_SIZE="2",
    LOCAL_WORLD_SIZE="1",
    MASTER_ADDR="127.0.0.1",
    MASTER_PORT=str(store.port),
    TORCHELASTIC_RUN_ID="demo",
    TORCHELASTIC_USE_AGENT_STORE="True",
)
for number, ranks in enumerate(json.loads(sys.argv[1])):
    start(number, ranks)
