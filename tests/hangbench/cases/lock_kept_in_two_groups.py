"""A lock is kept during collectives: on rank 0 by a thread that averages, on rank 1 by the main one."""

import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset

dist.init_process_group("gloo")
side = dist.new_group()
lock, wanted = threading.Lock(), threading.Event()
late = threading.Event()


def average():
    while True:
        wanted.wait()
        wanted.clear()
        if late.is_set() and dist.get_rank() == 1:
            time.sleep(1)
        with lock:
            dist.all_reduce(torch.ones(256), group=side)


def evaluate_shared():
    with lock:
        dist.all_reduce(torch.ones(1))


threading.Thread(target=average, daemon=True).start()
for step in range(1, 41):
    dist.all_reduce(torch.ones(16))
    if step == 40:
        mark_onset()
        late.set()
    if step % 10 == 0:
        wanted.set()
        time.sleep(0.5)
    evaluate_shared()
dist.destroy_process_group()
