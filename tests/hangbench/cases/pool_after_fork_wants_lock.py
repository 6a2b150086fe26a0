"""Rank 1 hands samples to a pool that was forked while another thread held a lock."""

import multiprocessing
import threading

import torch
import torch.distributed as dist
from onset import mark_onset

font_lock = threading.Lock()
lock_is_held = threading.Event()
pool_is_up = threading.Event()


def load_fonts():
    with font_lock:
        lock_is_held.set()
        pool_is_up.wait()


def draw(number):
    with font_lock:
        return number


def augment(pool):
    mark_onset()
    return pool.map(draw, range(8))


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    threading.Thread(target=load_fonts, daemon=True).start()
    lock_is_held.wait()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool_is_up.set()
        augment(pool)
dist.barrier()
dist.destroy_process_group()
