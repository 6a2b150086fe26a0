"""Starts a child that ends as told: `exit N` or `signal N`. It reaps the child when told to.

parent_of_one.py late     reaps on the next line of input
parent_of_one.py at_once  waits for the child, so reaps the moment it ends
"""

import os
import subprocess
import sys

from announcing import announce

CHILD = """
import os, sys
how, number = sys.stdin.readline().split()
if how == "exit":
    os._exit(int(number))
os.kill(os.getpid(), int(number))
"""

child = subprocess.Popen([sys.executable, "-c", CHILD])  # shares our input
announce(str(child.pid))
if sys.argv[1] == "late":
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    announce("zombie")
    sys.stdin.readline()
child.wait()
announce("reaped")
sys.stdin.readline()
