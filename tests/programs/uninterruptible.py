"""A process in state D: it has called vfork, and its child lives on."""

import ctypes
import os
import threading
import time

from announcing import announce

never = threading.Event()


def waits_for_its_child():
    vfork = ctypes.PyDLL(None).vfork  # PyDLL keeps the interpreter lock, as the child goes on here
    if vfork() == 0:
        announce(str(os.getppid()))
        time.sleep(1000)
        os._exit(0)


threading.Thread(target=never.wait, name="bystander", daemon=True).start()
waits_for_its_child()
