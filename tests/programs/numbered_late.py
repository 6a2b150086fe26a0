"""Gets its number after its start, as an actor of Ray does.

``loads FILE RANK``: it has loaded that library, and is this rank.
"""

import mmap
import os
import pathlib
import sys
import time

from announcing import announce

os.environ |= {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "40001"}
os.environ |= {"RANK": "3", "WORLD_SIZE": "4"}
if sys.argv[1:2] == ["loads"]:
    os.environ["RANK"] = sys.argv[3]
    with pathlib.Path(sys.argv[2]).open("rb") as file:
        library = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
announce()
time.sleep(1000)
