"""Carries terminal escapes wherever a process can carry text, then stands, or fails with more.

The first argument is a mode: unaware, recorded, failing. What else stands on the command line is
for show.
"""

import ctypes
import io
import sys
import threading
import time
from pathlib import Path

from announcing import announce

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\u202egnp\u2066\u200b\r[red]a[/red][link=http://evil]b[/link]"
PR_SET_NAME = 15
PR_SET_PTRACER, ANYONE = 0x59616D61, ctypes.c_ulong(-1)

sys.stderr = io.StringIO()  # Python's own words on an exception are not ours
libc = ctypes.CDLL(None)
libc.prctl(PR_SET_NAME, b"\x1b[2J\x9b\x7f\r[red]")
libc.prctl(PR_SET_PTRACER, ANYONE, 0, 0, 0)


def named(function):
    """The same function, in a file and under a name that no parser would accept."""
    code = function.__code__
    names = [name for name in ("co_name", "co_qualname") if hasattr(code, name)]  # the second: 3.11
    evil = dict.fromkeys(names, f"stands{EVIL}")
    return type(function)(code.replace(co_filename=f"/scripts/{EVIL}.py", **evil), globals())


def stand():
    announce()
    time.sleep(1000)


def fail():
    while '"environment"' not in Path("run/run.json").read_text():
        time.sleep(0.01)  # a rank that nobody has seen yet has no last words
    raise ValueError(f"no {EVIL}\n\x1b[1mHANG  forged line")


threading.Thread(target=time.sleep, args=(1000,), name=f"thread{EVIL}", daemon=True).start()
if sys.argv[1] != "unaware":
    import lightning_hangcheck as hc

    hc.checkpoint(f"checkpoint{EVIL}")
    with hc.section(f"section{EVIL}"):
        list(hc.track([1, 2], f"loop{EVIL}"))
named(fail if sys.argv[1] == "failing" else stand)()
