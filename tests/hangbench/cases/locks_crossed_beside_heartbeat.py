"""Two threads of rank 1 take the locks of a store in opposite order, while a third one ticks."""

import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset

finished = threading.Event()
catalogue_lock = threading.Lock()
both_hold_one = threading.Barrier(2)


class SampleStore:
    def __init__(self):
        self.lock = threading.RLock()
        self.samples = {}

    def evict(self):
        with catalogue_lock:
            both_hold_one.wait()
            with self.lock:
                self.samples.clear()

    def publish(self, sample):
        with self.lock:
            self.samples[len(self.samples)] = sample
            both_hold_one.wait()
            mark_onset()
            with catalogue_lock:
                pass


def report_progress():
    while not finished.is_set():
        time.sleep(0.5)


dist.init_process_group("gloo")
threading.Thread(target=report_progress, daemon=True).start()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    store = SampleStore()
    threading.Thread(target=store.evict, daemon=True).start()
    store.publish(torch.ones(4))
dist.barrier()
finished.set()
dist.destroy_process_group()
