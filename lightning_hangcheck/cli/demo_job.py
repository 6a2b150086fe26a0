"""The job of `hangcheck demo`: two ranks, each holding a lock that the other rank wants.

It is copied into a folder of its own and run like a user's script. It needs no torch and no rights.
"""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO


def main() -> None:
    """Start both ranks and wait for them, as a launcher does."""
    pipes = [os.pipe(), os.pipe()]
    ranks = []
    for rank in (0, 1):
        mine, other = pipes[rank][1], pipes[1 - rank][0]
        variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        ranks.append(
            subprocess.Popen(
                [sys.executable, __file__, str(rank), str(mine), str(other)],
                env={**os.environ, **variables},
                pass_fds=(mine, other),
            )
        )
    for ends in pipes:
        for end in ends:
            os.close(end)

    def end_ranks(number: int, _: object) -> None:
        for process in ranks:
            process.terminate()
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end_ranks)
    sys.exit(max(process.wait() for process in ranks))


def train(rank: int, mine: int, other: int) -> None:
    """Take this rank's lock; when both ranks have theirs, take the other lock."""
    with Path(f"lock-{rank}").open("w") as own, Path(f"lock-{1 - rank}").open("w") as wanted:
        fcntl.flock(own, fcntl.LOCK_EX)
        os.close(mine)
        os.read(other, 1)  # returns when the other rank has closed its end
        take_second_lock(wanted)


def take_second_lock(wanted: IO[str]) -> None:
    """Wait for ever: the other rank holds this lock and waits for ours."""
    fcntl.flock(wanted, fcntl.LOCK_EX)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends the demo without a traceback
    if len(sys.argv) == 1:
        main()
    else:
        train(*map(int, sys.argv[1:]))
