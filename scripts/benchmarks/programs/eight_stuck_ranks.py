"""Eight plain gloo ranks for attach_cost: one does not come to a collective. No word of hangcheck.

Started with a folder, it starts the ranks and ends them when it is ended itself; each rank leaves a
file there once it stands where it will stay.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

RANKS = 8
ABSENT = 1
FOR_EVER = timedelta(hours=1)


def main() -> None:
    """Be a rank if the environment says which, else start all of them."""
    if "RANK" in os.environ:
        stand_still(Path(sys.argv[1]), int(os.environ["RANK"]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    command = [sys.executable, __file__, sys.argv[1]]
    ranks = [subprocess.Popen(command, env=_of_rank(number)) for number in range(RANKS)]
    try:
        ranks[0].wait()
    finally:
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.wait()


def stand_still(folder: Path, rank: int) -> None:
    """Meet the others once, then wait for the one that does not come again."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "meeting"), RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=FOR_EVER)
    dist.all_reduce(torch.ones(4))
    (folder / f"stands-{rank}").touch()
    if rank == ABSENT:
        wait_for_feed()
    dist.all_reduce(torch.ones(4))


def wait_for_feed() -> None:
    """Stand in code of the user's own."""
    time.sleep(FOR_EVER.total_seconds())


def _of_rank(rank: int) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    numbers = (rank, rank, RANKS, RANKS)
    return {**os.environ, **{name: str(value) for name, value in zip(names, numbers, strict=True)}}


if __name__ == "__main__":
    main()
