"""The faults themselves: each function does what its name says, so that stacks read well."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

FAULT_MARK_VARIABLE = "HANGCHECK_FAULT_MARK"


def announce(cause: str, rank: int, where: str) -> None:
    """Say on stderr that the fault strikes, and append the moment to the file that the mark names.

    One line a strike: CLOCK_MONOTONIC nanoseconds, then the cause. Benchmarks take it as the onset.
    """
    os.write(2, f"[inject] {cause} strikes rank {rank} {where} (PID {os.getpid()})\n".encode())
    mark = os.environ.get(FAULT_MARK_VARIABLE)
    if mark:
        descriptor = os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{time.monotonic_ns()} {cause}\n".encode())
        os.close(descriptor)


def wait_for_an_event_that_nobody_sets() -> None:
    """Block in the rank's own code, without using the CPU."""
    threading.Event().wait()


def search_without_end() -> None:
    """Burn CPU without getting anywhere."""
    candidate = 1
    while candidate > 0:
        candidate = (candidate * 5 + 1) % 1_000_003 + 1


def stop_this_process() -> None:
    """Stop as a debugger or an operator would stop it; goes on at SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def kill_this_process() -> None:
    """Die as under the kernel's out-of-memory killer."""
    os.kill(os.getpid(), signal.SIGKILL)


def read_a_record_that_never_arrives() -> None:
    """Block in a read that has a writer who never writes."""
    reading_end, _writing_end = os.pipe()
    os.read(reading_end, 1)


def open_silent_server() -> tuple[socket.socket, str]:
    """Listen on loopback, so that the kernel accepts connections that nobody ever answers.

    Returns:
        The socket, which must be kept, and its address as a URL.
    """
    server = socket.create_server(("127.0.0.1", 0), backlog=50)
    return server, f"http://127.0.0.1:{server.getsockname()[1]}"


def ask_the_silent_server(server: socket.socket) -> None:
    """Send a request to it and wait for the answer."""
    with socket.create_connection(server.getsockname()) as connection:
        connection.sendall(b"GET /run-name HTTP/1.0\r\n\r\n")
        connection.recv(1)


def find_port_without_listener() -> int:
    """Return a loopback port at which nobody listens now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def tune_for_every_shape(seconds: float) -> None:
    """Compute for a while as a compiler or autotuner does in the first step: busy, and moving."""
    deadline = time.monotonic() + seconds
    size = 64
    while time.monotonic() < deadline:
        _try_shape(size)
        size = 64 + (size + 32) % 192


def _try_shape(size: int) -> None:
    import torch

    matrix = torch.rand(size, size)
    for _ in range(20):
        matrix = torch.tanh(matrix @ matrix)
