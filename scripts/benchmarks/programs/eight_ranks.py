"""Eight small, healthy ranks for sidecar_cost: each beats ten times a second until it is ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import lightning_hangcheck as hc

RANKS = 8
STEP_S = 0.1


def main() -> None:
    """Be a rank if the environment says which, else start all of them and end them when ended."""
    if "RANK" in os.environ:
        beat_forever()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ranks = [subprocess.Popen([sys.executable, __file__], env=_of_rank(i)) for i in range(RANKS)]
    try:
        ranks[0].wait()
    finally:
        for rank in ranks:
            rank.terminate()
        for rank in ranks:
            rank.wait()


def beat_forever() -> None:
    """Advance as training does: a step, a beat."""
    hc.checkpoint("Training begins")
    while True:
        time.sleep(STEP_S)
        hc.beat()


def _of_rank(rank: int) -> dict[str, str]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    numbers = (rank, rank, RANKS, RANKS)
    return {**os.environ, **{name: str(value) for name, value in zip(names, numbers, strict=True)}}


if __name__ == "__main__":
    main()
