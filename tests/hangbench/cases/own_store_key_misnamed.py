"""Ranks say in a store of their own that they staged their data; rank 1 waits for a key of another name."""

import datetime
import time

import torch
import torch.distributed as dist
from onset import mark_onset


def serve_store():
    port = [None]
    store = None
    if dist.get_rank() == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = [store.port]
    dist.broadcast_object_list(port, src=0)
    limit = datetime.timedelta(hours=2)
    return store or dist.TCPStore("127.0.0.1", port[0], is_master=False, timeout=limit)


def stage(store):
    time.sleep(0.5)
    store.set("staged/head" if dist.get_rank() == 0 else f"staged/node{dist.get_rank()}", "1")


def wait_for_others(store):
    if dist.get_rank() == 1:
        mark_onset()
        store.wait(["staged/node0"])


dist.init_process_group("gloo")
store = serve_store()
stage(store)
wait_for_others(store)
dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
