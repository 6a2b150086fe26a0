"""Starts ranks as a launcher does: a mode, their number; each announces itself.

Modes: stuck (rank 1 stands in its own code, the others in a barrier), fed (likewise, beside a
thread that could set it free), saving (rank 1 writes a file slowly), advancing (every rank steps),
stopped (rank 1 stops itself), alone (no launcher's variables).
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from announcing import announce

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
library = {}
exec(compile("def barrier():\n    import time\n    time.sleep(1000)\n", C10D, "exec"), library)  # noqa: S102 - a stand-in for torch


def computes():
    return sum(number * number for number in range(20_000))


def advances():
    while True:
        computes()
        time.sleep(0.01)


def saves():
    with tempfile.TemporaryFile() as file:
        while True:
            file.write(os.urandom(1 << 16))
            file.flush()
            time.sleep(0.2)


def waits_for_feed():
    threading.Event().wait()


def waits_beside_a_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    waits_for_feed()


STANDS = {"saving": saves, "fed": waits_beside_a_thread}


def becomes(mode, rank):
    announce(f"{rank} {os.getpid()}")
    if mode == "advancing":
        advances()
    elif rank != 1:
        library["barrier"]()
    elif mode == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        STANDS.get(mode, waits_for_feed)()


def launches(mode, count):
    port = str(20_000 + os.getpid() % 10_000)
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
    told |= {"LOCAL_WORLD_SIZE": str(count), "API_KEY": "s3cr3t"}
    pipe = int(os.environ["HANGCHECK_TEST_ANNOUNCE"])
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, mode, "rank", str(rank), "--api_key=s3cr3t"],
            env={**os.environ, **told, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            pass_fds=[pipe],
        )
        for rank in range(count)
    ]
    for process in ranks:
        process.wait()


if len(sys.argv) > 3:
    becomes(sys.argv[1], int(sys.argv[3]))
elif sys.argv[1] == "alone":
    becomes("stuck", 1)
else:
    launches(sys.argv[1], int(sys.argv[2]))
