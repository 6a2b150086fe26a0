"""What a program writes, heard within bounds: of time, and of bytes on both of its outputs."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

MOST_OUTPUT = 32 * 1024 * 1024
"""Bytes: eight stuck ranks with their workers take under one million."""
MOST_COMPLAINT = 1024 * 1024
PART_BYTES = 1 << 16
LOOK_S = 0.2
LAST_GRACE_S = 1.0


class Answer(Struct, frozen=True):
    """All that a program wrote until it ended."""

    output: bytes
    complaint: bytes
    exit_code: int


class NoAnswer(Exception):
    """It did not end in time, wrote too much, or nobody wants to hear it any more."""


def answer_of(command: Sequence[str], limit_s: float, given_up: threading.Event) -> Answer:
    """Run a program to its end; what it leaves in its process group ends with it.

    Args:
        command: Its name and arguments. It gets our environment, and no input.
        limit_s: Seconds until it is killed.
        given_up: Once set, it is killed.

    Raises:
        OSError: It cannot be started.
        NoAnswer: It was killed; the sentence says why.
    """
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, complaint = _heard(process, time.monotonic() + limit_s, given_up)
    except TimeoutError as error:
        raise NoAnswer(f"no answer within {limit_s:.3g} s") from error
    finally:
        _end(process)
    return Answer(output, complaint, process.returncode)


def _heard(
    process: subprocess.Popen[bytes], deadline: float, given_up: threading.Event
) -> tuple[bytes, bytes]:
    """Read until it ends: a helper that it left in the background may keep its outputs open."""
    if process.stdout is None or process.stderr is None:
        raise OSError("its outputs are not open")
    heard = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    most = dict(zip(heard, (MOST_OUTPUT, MOST_COMPLAINT), strict=True))
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as waiting:
            for descriptor in (*heard, ended):
                waiting.register(descriptor, selectors.EVENT_READ)
            _read(waiting, heard, most, ended, deadline, given_up)
    finally:
        os.close(ended)
    output, complaint = heard.values()
    return bytes(output), bytes(complaint)


def _read(
    waiting: selectors.BaseSelector,
    heard: dict[int, bytearray],
    most: dict[int, int],
    ended: int,
    deadline: float,
    given_up: threading.Event,
) -> None:
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if given_up.is_set():
            raise NoAnswer("it was interrupted")
        ready = [key.fd for key, _ in waiting.select(min(left_s, LOOK_S))]
        for descriptor in ready:
            if descriptor == ended:
                continue
            part = os.read(descriptor, PART_BYTES)
            heard[descriptor] += part
            if len(heard[descriptor]) > most[descriptor]:
                raise NoAnswer(f"it sent more than {most[descriptor] >> 20} MiB")
            if not part:
                waiting.unregister(descriptor)
        if ready == [ended]:
            return


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill its group before it is collected: until then nobody else can have the group's number."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(LAST_GRACE_S)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
