"""Results of processes that wait for a service come by callbacks: of a pool, and of an executor."""

import multiprocessing
import queue
import threading
import time
from concurrent.futures import ProcessPoolExecutor

import torch
import torch.distributed as dist


def score(sample):
    time.sleep(15)
    return sample


def score_in_pool(spawn):
    ready = threading.Event()
    with spawn.Pool(2) as pool:
        pool.apply_async(score, (3,), callback=lambda _: ready.set())
        ready.wait()


def score_in_executor(spawn):
    done = queue.SimpleQueue()
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        for sample in range(2):
            pool.submit(score, sample).add_done_callback(done.put)
        for _ in range(2):
            done.get().result()


def main():
    dist.init_process_group("gloo")
    spawn = multiprocessing.get_context("spawn")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        score_in_pool(spawn)
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        score_in_executor(spawn)
    dist.barrier()
    print(f"rank {dist.get_rank()} done", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
