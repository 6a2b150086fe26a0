"""Blocks in the system call that it is told, after saying what a test needs to recognise it."""

import ctypes
import fcntl
import multiprocessing
import multiprocessing.connection
import os
import pty
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

from announcing import announce


def lock(kind, path):
    with Path(path).open("w") as file:
        announce("trying")
        {"flock": fcntl.flock, "lockf": fcntl.lockf}[kind](file, fcntl.LOCK_EX)
        announce("holding")
        sys.stdin.read()


def lock_for_child(path, *command):
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(path).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        child = subprocess.Popen(command, stdin=theirs)
        announce()
        child.wait()


def filelock(kind, path, limit="-1"):
    import filelock

    announce("trying")
    {"hard": filelock.FileLock, "soft": filelock.SoftFileLock}[kind](path).acquire(int(limit))


def baton(folder):
    from torch.utils.cpp_extension import load_inline

    announce("trying")
    load_inline("spare", "int one() { return 1; }", functions=["one"], build_directory=folder)


def database(path):
    index = sqlite3.connect(path, timeout=1000, isolation_level=None)
    announce("opened")
    index.execute("BEGIN EXCLUSIVE")
    announce("holding")
    sys.stdin.read()


def sleep_beside(path, how):
    sleep = time.sleep if how == "in Python" else ctypes.CDLL(None).sleep
    with Path(path).open():
        announce("opened")
        while how == "in naps":
            ctypes.CDLL(None).usleep(100_000)
        sleep(1000)


def open_fifo(path):
    announce()
    Path(path).read_bytes()


def wait_for_child():
    child = subprocess.Popen(["sleep", "1000"])
    announce(child.pid)
    child.wait()


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


def read_event():
    event = os.eventfd(0)
    child = subprocess.Popen(["sleep", "1000"], pass_fds=[event])
    announce(child.pid)
    os.eventfd_read(event)


def take_semaphore(who):
    context = multiprocessing.get_context("fork")
    semaphore = context.Semaphore(0)

    def take(name):
        semaphore.acquire() if name in who else time.sleep(1000)

    children = [context.Process(target=take, args=(name,)) for name in ("child", "another")]
    children = children if who == "child beside another" else children[:1]
    for child in children:
        child.start()
    announce(" ".join(str(child.pid) for child in children))
    if who == "timed child":
        threading.Timer(1000, semaphore.release).start()
    take("parent") if who in ("child", "parent") else children[0].join()


def fill_pipe(launcher):
    reader, writer = os.pipe()
    context = multiprocessing.get_context("fork")
    news, _for_children = os.pipe()
    child = context.Process(target=os.write, args=(writer, bytes(1 << 20)))
    child.start()
    if launcher == "is told":
        context.Process(target=time.sleep, args=(1000,), daemon=True).start()
    if launcher == "listens":
        listener, _kept = os.pipe()
        threading.Thread(target=os.read, args=(listener, 1), daemon=True).start()
    if launcher == "has a timer":
        threading.Timer(1000, os.read, (reader, 1)).start()
    announce(child.pid)
    if launcher in ("polls", "is told"):
        told = [news] if launcher == "is told" else []
        multiprocessing.connection.wait([child.sentinel, *told])
    child.join()


def read_one_pipe_of_two():
    full, idle = (
        subprocess.Popen(command, stdout=subprocess.PIPE)
        for command in ([sys.executable, "-c", "print('x' * 1000000)"], ["sleep", "1000"])
    )
    announce(f"{full.pid} {idle.pid}")
    idle.stdout.read(1)


def take_named_semaphore(name):
    library = ctypes.CDLL(None)
    library.sem_open.restype = ctypes.c_void_p
    semaphore = library.sem_open(f"/{name}".encode(), os.O_CREAT, 0o600, 0)
    announce()
    library.sem_wait(ctypes.c_void_p(semaphore))


def read_fifo_kept_open(path):
    os.mkfifo(path)
    fifo = os.open(path, os.O_RDWR)
    announce(subprocess.Popen(["sleep", "1000"], pass_fds=[fifo]).pid)
    os.read(fifo, 1)


def read_pseudo_terminal():
    _, slave = pty.openpty()
    child = subprocess.Popen(["cat"], stdin=slave, stdout=slave)
    announce(child.pid)
    child.wait()


def read_timer(how):
    library = ctypes.CDLL(None)
    timer = library.timerfd_create(time.CLOCK_MONOTONIC, 0)
    again_s = 500 if how == "again" else 0
    library.timerfd_settime(timer, 0, (ctypes.c_long * 4)(again_s, 0, 500, 0), None)
    announce()
    os.read(timer, 8)


def join_natively():
    """The main thread waits in a thread's join of C, which asks for shared memory all the same."""
    library = ctypes.CDLL(None)
    entry = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: time.sleep(1000))
    thread = ctypes.c_ulong()
    library.pthread_create(ctypes.byref(thread), None, entry, None)
    announce()
    library.pthread_join(thread, None)


def wait_for_signal():
    announce("waiting")
    signal.pause()


def receive(limit=""):
    server = socket.create_server(("127.0.0.1", 0))
    announce("{}:{}".format(*server.getsockname()))
    client = socket.create_connection(server.getsockname())
    client.settimeout(float(limit) if limit else None)
    client.recv(1)


def download(port):
    client = socket.create_connection(("127.0.0.1", int(port)))
    announce()
    while client.recv(1000):
        pass


def accept(family):
    families = {"4": (socket.AF_INET, "127.0.0.1"), "6": (socket.AF_INET6, "::1")}
    server = socket.create_server((families[family][1], 0), family=families[family][0])
    announce(server.getsockname()[1])
    server.accept()


def locked_threads():
    locks = [threading.Lock() for _ in range(2)]
    for one in locks:
        one.acquire()

    def want(one):
        with one:
            pass

    threading.Thread(target=want, args=(locks[1],)).start()
    announce()
    want(locks[0])


globals()[sys.argv[1]](*sys.argv[2:])
