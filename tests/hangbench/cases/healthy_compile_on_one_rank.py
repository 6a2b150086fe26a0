"""Rank 1 meets a new shape and compiles for some 15 s; rank 0 waits for it."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

KERNEL = "int kernel_{0}(int x) {{ return x * {0}; }}\n"


def generate_source(count):
    return "".join(KERNEL.format(number) for number in range(count))


def compile_kernels():
    end = time.monotonic() + 15
    compiler = shutil.which("cc")
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            source = generate_source(5000)
            (Path(folder) / "kernels.c").write_text(source)
            if compiler:
                subprocess.run([compiler, "-O2", "-c", "kernels.c"], cwd=folder, check=True)


dist.init_process_group("gloo")
for step in range(40):
    if dist.get_rank() == 1 and step == 20:
        compile_kernels()
    dist.all_reduce(torch.ones(4))
dist.barrier()
dist.destroy_process_group()
