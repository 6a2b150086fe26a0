"""Rank 0 writes all to a scorer before it reads an answer, while a thread runs a program each second."""

import subprocess
import sys
import threading

import torch
import torch.distributed as dist
from onset import mark_onset

finished = threading.Event()
SCORES = "import sys\nfor line in sys.stdin: print(line.strip() * 2, flush=True)"


class Scorer:
    def __init__(self):
        command = [sys.executable, "-c", SCORES]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def score_corpus(self, sentences):
        for sentence in sentences:
            self.process.stdin.write(f"{sentence}\n")
        self.process.stdin.flush()
        return [self.process.stdout.readline() for _ in sentences]


def monitor_machine():
    while not finished.wait(1):
        subprocess.run(["cat", "/proc/loadavg", "/proc/meminfo"], stdout=subprocess.DEVNULL)


def evaluate(scorer, count):
    if scorer is not None:
        scorer.score_corpus(["w1 w2 w3 w4"] * count)
    dist.barrier()


dist.init_process_group("gloo")
scorer = None
if dist.get_rank() == 0:
    scorer = Scorer()
    threading.Thread(target=monitor_machine, daemon=True).start()
for _ in range(20):
    dist.all_reduce(torch.ones(4))
evaluate(scorer, 10)
mark_onset()
evaluate(scorer, 20_000)
finished.set()
dist.destroy_process_group()
