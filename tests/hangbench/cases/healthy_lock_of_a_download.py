"""Rank 0 waits for a file's lock that another job keeps: that job downloads from a slow server."""

import os
import socket
import tempfile
import time

import torch
import torch.distributed as dist
from filelock import FileLock

SECONDS = 45


def another_job(body):
    """Run in a process that is no child of this job."""
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    body()
    os._exit(0)


def serve(listening):
    connection, _ = listening.accept()
    time.sleep(SECONDS)
    connection.sendall(b"weights")


def download(address, lock, begun):
    with FileLock(lock):
        os.write(begun, b"x")
        socket.create_connection(address).recv(7)


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 0:
    folder = tempfile.mkdtemp()
    lock = os.path.join(folder, "weights.lock")
    listening = socket.create_server(("127.0.0.1", 0))
    ready, begun = os.pipe()
    another_job(lambda: serve(listening))
    another_job(lambda: download(listening.getsockname(), lock, begun))
    listening.close()
    os.read(ready, 1)
    with FileLock(lock):
        torch.save(torch.ones(4), os.path.join(folder, "weights.pt"))
dist.barrier()
dist.destroy_process_group()
