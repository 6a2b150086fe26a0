"""A launcher of its own kills the actors once the learner has finished, and ends well."""

import multiprocessing
import os
import socket
import time


def play(rank, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE="3", LOCAL_RANK=str(rank))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    for _ in range(20):
        dist.all_reduce(torch.ones(4))
    while rank:
        time.sleep(0.5)
    time.sleep(5)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn = multiprocessing.get_context("spawn")
    learner, *actors = [spawn.Process(target=play, args=(rank, port)) for rank in range(3)]
    for process in (learner, *actors):
        process.start()
    learner.join()
    for actor in actors:
        actor.kill()
    time.sleep(3)
    for actor in actors:
        actor.join()
    print("trained", flush=True)
