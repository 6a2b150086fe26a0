"""Blocks in the system call that it is told, after saying what a test needs to recognise it."""

import ctypes
import fcntl
import multiprocessing
import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from announcing import announce


def lock(kind, path):
    with Path(path).open("w") as file:
        announce("trying")
        {"flock": fcntl.flock, "lockf": fcntl.lockf}[kind](file, fcntl.LOCK_EX)
        announce("holding")
        sys.stdin.read()


def filelock(path):
    import filelock

    announce("trying")
    filelock.FileLock(path).acquire()


def database(path):
    index = sqlite3.connect(path, timeout=1000, isolation_level=None)
    announce("opened")
    index.execute("BEGIN EXCLUSIVE")
    announce("holding")
    sys.stdin.read()


def sleep_beside(path):
    with Path(path).open():
        announce("opened")
        time.sleep(1000)


def open_fifo(path):
    announce()
    Path(path).read_bytes()


def wait_for_any_child():
    children = [subprocess.Popen(["sleep", "1000"]) for _ in range(2)]
    announce(" ".join(str(one.pid) for one in children))
    os.wait()


def read_both_ways(who):
    """Both processes have both ends, as a fork leaves them, or the child is gone."""
    context = multiprocessing.get_context("fork")
    ours, _theirs = context.Pipe()
    child = context.Process(target=time.sleep, args=(1000,))
    child.start()
    if who == "parent":
        child.kill()
        child.join()
    announce(child.pid)
    ours.recv()


def read_from_daemon():
    reader, writer = os.pipe()
    child = subprocess.Popen(
        ["sh", "-c", "sleep 1000 >/dev/null & echo $!"], pass_fds=[writer], stdout=subprocess.PIPE
    )
    daemon = int(child.stdout.readline())
    child.wait()
    announce(daemon)
    os.read(reader, 1)


def poll_child():
    child = subprocess.Popen(["sleep", "1000"])
    events = select.epoll()
    events.register(os.pidfd_open(child.pid))
    announce(child.pid)
    events.poll()


def take_semaphore():
    context = multiprocessing.get_context("fork")
    semaphore = context.Semaphore(0)
    child = context.Process(target=semaphore.acquire)
    child.start()
    announce(child.pid)
    time.sleep(1000)


def read_timer(how):
    library = ctypes.CDLL(None)
    timer = library.timerfd_create(time.CLOCK_MONOTONIC, 0)
    again_s = 500 if how == "again" else 0
    library.timerfd_settime(timer, 0, (ctypes.c_long * 4)(again_s, 0, 500, 0), None)
    announce()
    os.read(timer, 8)


def wait_for_signal():
    announce("waiting")
    signal.pause()


def receive(limit):
    server = socket.create_server(("127.0.0.1", 0))
    announce("{}:{}".format(*server.getsockname()))
    client = socket.create_connection(server.getsockname())
    client.settimeout(float(limit))
    client.recv(1)


def download(port):
    client = socket.create_connection(("127.0.0.1", int(port)))
    announce()
    while client.recv(1000):
        pass


def accept():
    server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    announce(server.getsockname()[1])
    server.accept()


globals()[sys.argv[1]](*sys.argv[2:])
