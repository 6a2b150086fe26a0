"""Runs another program of this folder as the first process of a new pid namespace."""

import os
import subprocess
import sys
from pathlib import Path

pipe = int(os.environ["HANGCHECK_TEST_ANNOUNCE"])
inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
program = str(Path(__file__).with_name(sys.argv[1]))
subprocess.run([*inside, sys.executable, program, *sys.argv[2:]], pass_fds=[pipe], check=False)
