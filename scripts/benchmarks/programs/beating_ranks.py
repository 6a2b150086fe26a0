"""Small ranks that beat, each once all others have: ``RANKS [CHILDREN]``.

Between two beats they meet in the process that started them. So one that is stopped holds up all.
Each has so many idle children, forks of its own as a DataLoader's workers are.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import lightning_hangcheck as hc

STEP_S = 0.0125
"""For each rank: as many beats a second together, however many there are."""
MEETING = "MEETING_DESCRIPTOR"


def main() -> None:
    """Be a rank if the environment says which, else start all of them and end them when ended."""
    if "RANK" in os.environ:
        beat_forever(int(sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ends, ranks = [], []
    try:
        for number in range(int(sys.argv[1])):
            own, theirs = socket.socketpair()
            with theirs:
                ranks.append(_start(number, theirs))
            ends.append(own)
        while b"" not in [end.recv(1) for end in ends]:
            time.sleep(STEP_S * len(ends))
            for end in ends:
                end.sendall(b".")
    finally:
        for rank in ranks:
            os.killpg(rank.pid, signal.SIGKILL)
        for rank in ranks:
            rank.wait()


def beat_forever(children: int) -> None:
    """Advance as training does: a step, a beat."""
    for _ in range(children):
        if not os.fork():
            signal.pause()
    meeting = socket.socket(fileno=int(os.environ[MEETING]))
    hc.checkpoint("Training begins")
    while True:
        hc.beat()
        meeting.sendall(b".")
        meeting.recv(1)


def _start(rank: int, meeting: socket.socket) -> subprocess.Popen[bytes]:
    command, descriptor = [sys.executable, *sys.argv, "0"][:4], meeting.fileno()
    numbers = {"RANK": rank, "LOCAL_RANK": rank, MEETING: descriptor}
    numbers |= {"WORLD_SIZE": int(sys.argv[1]), "LOCAL_WORLD_SIZE": int(sys.argv[1])}
    environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}}
    return subprocess.Popen(command, env=environment, pass_fds=[descriptor], start_new_session=True)


if __name__ == "__main__":
    main()
