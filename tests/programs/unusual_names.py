"""Blocks in a function and a thread whose names are not ASCII; a test copies it elsewhere."""

import threading

from announcing import announce

never = threading.Event()


def öffnet_das_märchenbuch():
    announce()
    never.wait()


threading.Thread(target=never.wait, name="Fädchen (1) {x}").start()
öffnet_das_märchenbuch()
