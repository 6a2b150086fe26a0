"""A thread looks for labels each second, and writes them into a file object that is a pipe."""

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def follow(labels, out):
    while not labels.exists():
        time.sleep(1)
    out.write(labels.read_text())
    out.flush()


dist.init_process_group("gloo")
for _ in range(20):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() == 1:
    labels = Path(tempfile.mkdtemp()) / "labels"
    make = f"sleep 18; echo cat > {labels}.new; mv {labels}.new {labels}"
    subprocess.Popen(["sh", "-c", make], start_new_session=True)
    reader, writer = (os.fdopen(end, mode) for end, mode in zip(os.pipe(), "rw", strict=True))
    threading.Thread(target=follow, args=(labels, writer), daemon=True).start()
    print(reader.readline(), flush=True)
dist.barrier()
print(f"rank {dist.get_rank()} done", flush=True)
dist.destroy_process_group()
