"""Rank 1 waits in a store of rank 0's for word of a transfer outside the job, which takes 14 s."""

import datetime
import os
import subprocess
import sys

TRANSFER = """
import sys, time
from torch.distributed import TCPStore
port = int(sys.stdin.readline())
time.sleep(14)
TCPStore("127.0.0.1", port, is_master=False).set("staged", "1")
"""
transfer = None
if os.environ["RANK"] == "0":  # it needs torch, too: both import it at the same time
    command = ["setsid", "--fork", sys.executable, "-c", TRANSFER]
    transfer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def open_store():
    port, store = [None], None
    if transfer is not None:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [store.port]
        transfer.stdin.write(f"{store.port}\n")
        transfer.stdin.flush()
    dist.broadcast_object_list(port, src=0)
    limit = datetime.timedelta(hours=2)
    return store or dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=limit)


dist.init_process_group("gloo")
store = open_store()
if dist.get_rank() == 1:
    store.wait(["staged"])
dist.all_reduce(torch.ones(4))
dist.barrier()
print("staged", flush=True)
dist.destroy_process_group()
