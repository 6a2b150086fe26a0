"""Offers its stacks by a signal, protected from every debugger, and stands somewhere for ever."""

import ctypes
import os
import signal
import sys
import threading
import time

from announcing import announce

from lightning_hangcheck.hooks.being_watched import offer_stacks
from lightning_hangcheck.session.session import SessionFacts, new_key, open_session, session_folder

PR_SET_DUMPABLE = 4
HELD_FOR_S = 1000


def waits_for_ever():
    announce(str(session.path))
    time.sleep(HELD_FOR_S)


def keeps_the_interpreter_lock():
    reader, _ = os.pipe()
    announce(str(session.path))
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


def becomes_another_program():
    announce(str(session.path))
    os.execvp("sleep", ["sleep", str(HELD_FOR_S)])  # noqa: S606 - a program of its own


def leaves():
    announce(str(session.path))
    sys.stdin.readline()


def stands_with_a_helper():
    threading.Thread(target=time.sleep, args=(HELD_FOR_S,), daemon=True).start()
    waits_for_ever()


def stands_with_many_helpers():
    for _ in range(120):
        threading.Thread(target=time.sleep, args=(HELD_FOR_S,), daemon=True).start()
    waits_for_ever()


facts = SessionFacts(run_dir=".", command="", started_at="", root_pid=os.getpid())
session = open_session(session_folder(new_key()), facts)
if "taken" in sys.argv:
    signal.signal(signal.SIGRTMIN + 9, lambda *_: None)
offer_stacks(session)
ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
globals()[sys.argv[1]]()
