"""The line between `hangcheck run` and its sidecar: one JSON object a line, both ways, over pipes.

The launcher says whom to tell of a hang, that the job shall end, and how the command ended; the
sidecar says that a hang is proven. Each side sees the other's death as the end of its pipe.
"""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from typing import IO

import msgspec
from msgspec import Struct

from lightning_hangcheck.alerts.asked_for import AlertsAskedFor
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.decoders import json_decoder

CHUNK = 65_536


class CommandEnded(Struct, frozen=True, tag="ended"):
    """From the launcher: the command is gone.

    Attributes:
        left_running: Process ids of what it started and left behind.
    """

    pid: int
    exit_code: int
    left_running: tuple[int, ...] = ()


class EndAsked(Struct, frozen=True, tag="end"):
    """From the launcher: somebody asked the job to end, or the launcher itself is ending it.

    Attributes:
        by: As in `AskedEnd`.
    """

    by: str


class LauncherGone(Struct, frozen=True, tag="gone"):
    """The launcher's end of the pipe is closed; nobody will say how the command ends."""


class HangProven(Struct, frozen=True, tag="hang"):
    """From the sidecar: a hang stands, its evidence is saved.

    Attributes:
        ranks: Those of this node that were there, each by process id and start in clock ticks.
        restarts_left: How often torchrun will start them again; None where nobody says so.
    """

    ranks: tuple[tuple[int, int], ...] = ()
    restarts_left: int | None = None


Message = AlertsAskedFor | CommandEnded | EndAsked | LauncherGone | HangProven


def send(pipe: IO[bytes], message: Message) -> bool:
    """Send a message; False if the other side is gone."""
    try:
        pipe.write(encode(message) + b"\n")
        pipe.flush()
    except (OSError, ValueError):
        return False
    return True


class Inbox:
    """Reads messages in a thread of its own, so that its owner never waits for the other side."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._read, args=(pipe,), name="hangcheck-inbox", daemon=True
        )
        self._thread.start()

    def next(self) -> Message | None:
        """Return the oldest message that was not taken yet, None if there is none."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def wait_for_end(self, limit_s: float) -> bool:
        """Wait until the other side has closed its end; whether it did in time."""
        return self._ended.wait(limit_s)

    def _read(self, pipe: IO[bytes]) -> None:
        """Read the descriptor itself: a buffer that is locked in here at exit aborts Python."""
        unread = b""
        while data := os.read(pipe.fileno(), CHUNK):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                self._receive(line)
        self._messages.put(LauncherGone())
        self._ended.set()

    def _receive(self, line: bytes) -> None:
        with suppress(msgspec.MsgspecError):
            self._messages.put(json_decoder(Message).decode(line))
