"""Rank 1 waits for its spawned child's word, and that imports the main module first: 15 s."""

import multiprocessing
import time

if __name__ == "__mp_main__":
    time.sleep(15)  # the simulator's levels, which only the child loads
else:
    import torch
    import torch.distributed as dist


def simulate(ready, ended):
    ready.set()
    ended.wait()


def main():
    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 1:
        spawning = multiprocessing.get_context("spawn")
        ready, ended = spawning.Event(), spawning.Event()
        child = spawning.Process(target=simulate, args=(ready, ended))
        child.start()
        ready.wait()
        ended.set()
        child.join()
    dist.all_reduce(torch.ones(4))
    dist.barrier()
    print("simulated", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
