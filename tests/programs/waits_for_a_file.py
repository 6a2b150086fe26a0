"""Says which rank it is, waits until ``DIR/fail`` is there, and fails.

``waits_for_a_file.py DIR [watched]``: with the callback of ours, where no `hangcheck run` is there.
"""

import os
import sys
import time
from pathlib import Path

FOLDER = Path(sys.argv[1])
if sys.argv[2:]:
    from lightning_hangcheck import HangCheck

    HangCheck()
(FOLDER / f"rank-{os.environ['RANK']}").touch()
while not (FOLDER / "fail").exists():
    time.sleep(0.1)
sys.exit("this rank fails")
