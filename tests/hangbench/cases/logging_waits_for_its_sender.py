"""A handler of logging hands records to a thread of its own by a queue that has become full; the
thread warns of that itself, and so wants the handler's lock."""

import logging
import queue
import threading
import time

import torch
import torch.distributed as dist
from onset import mark_onset

SLOW_AT = 60


class Sending(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = queue.Queue(maxsize=4)
        threading.Thread(target=self.send, name="sender", daemon=True).start()

    def emit(self, record):
        self.records.put(record)

    def send(self):
        while True:
            record = self.records.get()
            if record.args == (SLOW_AT,):
                while not self.records.full():
                    time.sleep(0.1)
                time.sleep(0.5)
                log.warning("%d records wait to be sent", self.records.qsize())


log = logging.getLogger("training")
log.setLevel(logging.INFO)
log.propagate = False
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    log.addHandler(Sending())
for step in range(10_000):
    dist.all_reduce(torch.ones(4))
    log.info("step %d", step)
    if step == SLOW_AT and dist.get_rank() == 1:
        mark_onset()
    time.sleep(0.01)
