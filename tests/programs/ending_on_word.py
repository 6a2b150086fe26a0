"""A rank that comes in, waits for the word, says a few things more, and ends: exit code 3.

Arguments: a folder for the word; ``watched`` to have its node watched, as HangCheck does.
"""

import os
import sys
import time
from pathlib import Path

import lightning_hangcheck as hc
from lightning_hangcheck.hooks.being_watched import keep_sidecar
from lightning_hangcheck.recorder.lifecycle import current

word = Path(sys.argv[1])
hc.checkpoint("Script started")
if sys.argv[2:] == ["watched"]:
    keep_sidecar(current())
session = current().session
assert session is not None
while not session.sidecar_file.exists():
    time.sleep(0.02)
(word / f"in-{os.environ['RANK']}").touch()
while not (word / "go").exists():
    time.sleep(0.02)
for item in range(20):
    hc.checkpoint(f"Item {item}")
    time.sleep(0.05)
sys.exit(3)
