"""Starts two ranks that say only to the recorder which ranks they are; each announces itself."""

import os
import subprocess
import sys
import time

from announcing import announce

from lightning_hangcheck.recorder.lifecycle import current

recorder = current()
recorder.start()
if len(sys.argv) > 1:
    recorder.learn_identity(int(sys.argv[1]), 2, int(sys.argv[1]))
    announce(f"{sys.argv[1]} {os.getpid()}")
    time.sleep(1000)
pipe = int(os.environ["HANGCHECK_TEST_ANNOUNCE"])
ranks = [
    subprocess.Popen([sys.executable, __file__, str(rank)], pass_fds=[pipe]) for rank in range(2)
]
for process in ranks:
    process.wait()
