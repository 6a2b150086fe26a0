"""Says secrets wherever a program can, then stands still among them.

Every secret holds LEAK. The first argument is a mode: recorded (told to hangcheck, which watches),
unaware (never heard of it); others are for show.
Of two ranks, rank 0 waits in a barrier for rank 1. The second argument is a folder: each process
writes there where its session is, once it stands (torchrun hands no pipe on).
"""

import io
import os
import sys
import threading
import time
from pathlib import Path

LEAK = "xleakx"
C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
library = {}
exec(compile("def barrier():\n    import time\n    time.sleep(1000)\n", C10D, "exec"), library)  # noqa: S102 - a stand-in for torch
sys.stderr = io.StringIO()  # Python's own words on an exception are not ours


class Client:
    def __init__(self):
        self.token = LEAK

    def __repr__(self):
        return f"Client(token={self.token}, url=http://me:{LEAK}@host/)"


def loads(words):
    headers = {"X-Api-Key": LEAK, "Authorization": f"Bearer {LEAK}", "Accept": "text/html"}
    pair = ("hf_" + "A" * 40, f"hf_{LEAK}" + "B" * 40)
    passphrase, pw, wandb_key = f"open {LEAK}", LEAK, (LEAK, LEAK)
    nested = {"wandb": {"keys": [1, {"api_key": LEAK}], "password": f'quo"te, {LEAK}'}}
    arguments = ["--token", LEAK, "--lr", "1"]
    address = f"postgres://me:{LEAK}@host/db?password={LEAK}"
    written = f"client = {Client()!r}"
    cut = "c" * 110 + f" hf_{LEAK}" + "d" * 200
    shown = Path(sys.argv[2], f".{os.getpid()}")
    shown.write_text(words)
    shown.rename(shown.with_name(f"{os.getpid()}.stands"))
    if os.environ.get("RANK") == "0":
        library["barrier"]()
    threading.Event().wait()
    return headers, pair, passphrase, pw, wandb_key, nested, arguments, address, written, cut


def records():
    import lightning_hangcheck as hc
    from lightning_hangcheck.hooks.being_watched import keep_sidecar
    from lightning_hangcheck.recorder.lifecycle import current

    keep_sidecar(current())
    session = current().session
    while not session.facts.launched and not session.sidecar_file.exists():
        time.sleep(0.01)  # a program that fails before it is watched gets no verdict
    hc.checkpoint(f"logged in with --wandb_key {LEAK}")
    with hc.section(f"saving model-token={LEAK}.ckpt"):
        hc.beat()
    list(hc.track([1], f"passphrase: {LEAK}"))
    return str(session.path)


words = records() if sys.argv[1] != "unaware" else "no session"
loads(words)
