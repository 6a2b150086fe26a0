"""Two phases of a pipeline; the first argument is what to do if they are done, the second a metric.

With a third argument it stops within the second phase, until it is killed.
"""

import os
import sys
import time
from pathlib import Path

import lightning_hangcheck as hc

if_done, metric, *wait = sys.argv[1:]
print("ready", flush=True)
with hc.phase("prepare", inputs=["raw.txt"], outputs=["data.txt"], if_done=if_done) as prepare:
    if prepare.needed and os.environ.get("RANK", "0") == "0":
        Path("data.txt").write_text(Path("raw.txt").read_text().upper())
    prepare.metric("rows", 0.95)
print("prepare", prepare.needed, flush=True)
with hc.phase("train", inputs=["data.txt"], outputs=["last.ckpt"], metric="val_acc") as train:
    train.metric("val_acc", float(metric))
    if wait:
        print("waiting", flush=True)
        time.sleep(600)
    if os.environ.get("RANK", "0") == "0":
        Path("last.ckpt").write_text("weights")
print("train", train.needed, flush=True)
