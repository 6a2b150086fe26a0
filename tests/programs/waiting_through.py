"""Rank 1 waits through its threads or children, as the first argument says; rank 0 in a barrier.

Beside the threads of each shape a ticking one reports metrics: no verdict may take that for work.
"""

import asyncio
import ctypes
import fcntl
import multiprocessing
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path

import torch
import torch.distributed as dist

SHAPE, PORT = sys.argv[1], int(sys.argv[2])
LOCK = Path(sys.argv[3])


def report_metrics():
    while True:
        time.sleep(0.7)


def ask():
    with socket.create_connection(("127.0.0.1", PORT)) as server:
        server.sendall(b"?")
        return server.recv(100)


def take_lock():
    with LOCK.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def open_fifo():
    LOCK.with_suffix(".fifo").open("w").close()


def pool_download():
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: ask(), range(5)))


def thread_pool_map():
    ThreadPool(2).map(lambda _: ask(), range(3))


def queue_of_prefetcher():
    batches = queue.Queue()
    threading.Thread(target=lambda: batches.put(ask()), daemon=True).start()
    batches.get()


def event_of_loop_thread():
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def open_remote():
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(b"?")
        return await reader.read(10)

    asyncio.run_coroutine_threadsafe(open_remote(), loop).result()


def loop_with_connections():
    async def ask_again():
        reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
        writer.write(b"?")
        return await reader.read(10)

    async def ask_all():
        return await asyncio.gather(*(ask_again() for _ in range(3)))

    asyncio.run(ask_all())


def lock_under_to_thread():
    asyncio.run(asyncio.to_thread(take_lock))


def joined_writer():
    writer = threading.Thread(target=open_fifo)
    writer.start()
    writer.join()


def lock_in_process_pool():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(child_takes_lock, range(2))


def child_takes_lock(_):
    take_lock()


def joined_child():
    child = multiprocessing.get_context("fork").Process(target=ask)
    child.start()
    child.join()


def program_that_sleeps():
    subprocess.run(["sleep", "100000"], check=True)


def keep_interpreter_lock():
    ctypes.PyDLL(None).sleep(100_000)


def interpreter_lock():
    threading.Thread(target=keep_interpreter_lock, daemon=True).start()
    for _ in range(1000):
        dist.all_reduce(torch.ones(4))


def barrier_in_thread():
    group = dist.new_group()
    if dist.get_rank() == 1:
        time.sleep(100_000)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(dist.barrier, group).result()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
threading.Thread(target=report_metrics, daemon=True).start()
if dist.get_rank() == 1 or SHAPE in ("interpreter_lock", "barrier_in_thread"):
    if SHAPE == "interpreter_lock" and dist.get_rank() == 0:
        for _ in range(1000):
            dist.all_reduce(torch.ones(4))
    else:
        globals()[SHAPE]()
dist.barrier()
os._exit(0)
