"""The device and the process group of the ``queued_*`` programs: NCCL's, or one that behaves so.

`scripts/hangbench --gpu` runs them on an NVIDIA GPU with NCCL; else they hang as on GPUs, on CPU.
Import it before torch.
"""

import os

if os.environ.get("HANGBENCH_GPU"):
    from queued_on_gpu import BACKEND, DEVICE, loss, side_stream, synchronize, work_long
else:
    from queued_on_cpu import BACKEND, DEVICE, loss, side_stream, synchronize, work_long

__all__ = ["BACKEND", "DEVICE", "loss", "side_stream", "synchronize", "work_long"]
