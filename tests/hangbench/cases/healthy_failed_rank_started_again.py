"""An own launcher starts a rank that failed again after a pause; the other waits for its word."""

import datetime
import multiprocessing
import os
import socket
import time

import torch
import torch.distributed as dist


def train(rank, life, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    limit = datetime.timedelta(minutes=10)
    store = dist.TCPStore("127.0.0.1", port, 2, rank == 0, limit, wait_for_workers=False)
    while life < 2:
        store.set(f"life {life}, rank {rank}", "is here")
        store.wait([f"life {life}, rank {1 - rank}"])
        own = dist.PrefixStore(str(life), store)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=2)
        for _ in range(20):
            dist.all_reduce(torch.ones(4))
        if rank == 1 and life == 0:
            os._exit(3)
        dist.destroy_process_group()
        life += 1
    print("trained", flush=True)


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    first, second = (context.Process(target=train, args=(rank, 0, port)) for rank in range(2))
    first.start()
    second.start()
    second.join()
    time.sleep(15)
    again = context.Process(target=train, args=(1, 1, port))
    again.start()
    for process in (first, again):
        process.join()
    raise SystemExit(max(first.exitcode, again.exitcode))


if __name__ == "__main__":
    main()
