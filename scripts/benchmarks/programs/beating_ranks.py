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


def main() -> None:
    """Be a rank if the environment says which, else start all of them and end them when ended."""
    if "RANK" in os.environ:
        beat_forever(int(sys.argv[2]))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ends, ranks = [], []
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=int(sys.argv[1])) as server:
            port = server.getsockname()[1]
            ranks = [_start(number, port) for number in range(int(sys.argv[1]))]
            ends = [server.accept()[0] for _ in ranks]
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
    meeting = socket.create_connection(("127.0.0.1", int(os.environ["MASTER_PORT"])))
    hc.checkpoint("Training begins")
    while True:
        hc.beat()
        meeting.sendall(b".")
        meeting.recv(1)


def _start(rank: int, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, *sys.argv, "0"][:4]
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
    numbers |= {"WORLD_SIZE": int(sys.argv[1]), "LOCAL_WORLD_SIZE": int(sys.argv[1])}
    environment = {**os.environ, **{name: str(value) for name, value in numbers.items()}}
    return subprocess.Popen(command, env=environment, start_new_session=True)


if __name__ == "__main__":
    main()
