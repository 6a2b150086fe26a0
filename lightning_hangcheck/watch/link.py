"""How a sidecar is started, and how it talks with `hangcheck run`.

They exchange one JSON object a line over pipes. The launcher says whom to alert to a hang, that the
job shall end, and how the command ended; the sidecar says that a hang is proven. Each side sees the
other's death as the end of its pipe.
"""

from __future__ import annotations

import os
import queue
import subprocess
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck.alerts import AlertsAskedFor
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.machine import NoRoom, require_room, start_thread
from lightning_hangcheck.model.codec import encode, json_decoder
from lightning_hangcheck.settings import Settings, environment_with

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session

MODULE = "lightning_hangcheck.watch.sidecar"
TASKS = 24
"""Threads and processes that must have room: `hangcheck run`, the sidecar's own seven threads, and
a look at three processes. A larger look asks for its own room (`watch.workers`)."""


class CommandEnded(Struct, frozen=True, tag="ended"):
    """From the launcher: the command has ended, and left these processes running."""

    pid: int
    exit_code: int
    left_running: tuple[int, ...] = ()


class EndAsked(Struct, frozen=True, tag="end"):
    """From the launcher: somebody asked the job to end, or it ends; ``by`` as in `AskedEnd`."""

    by: str


class HangProven(Struct, frozen=True, tag="hang"):
    """From the sidecar: a hang is proven, and its evidence is saved.

    ``ranks``: those of this node, each as process id and start in clock ticks. ``restarts_left``:
    how often torchrun will start them again, None if unknown.
    """

    ranks: tuple[tuple[int, int], ...] = ()
    restarts_left: int | None = None


Message = AlertsAskedFor | CommandEnded | EndAsked | HangProven


def send(pipe: IO[bytes], message: Message) -> bool:
    """Send a message; False if the other side is gone."""
    try:
        pipe.write(encode(message) + b"\n")
        pipe.flush()
    except (OSError, ValueError):
        return False
    return True


class Inbox:
    """Reads messages in a thread, so that its owner never waits for the other side.

    ``ended``: the other side has closed its end, and all its messages can be taken.
    """

    def __init__(self, pipe: IO[bytes]) -> None:
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.ended = threading.Event()
        threading.Thread(
            target=self._read, args=(pipe,), name="hangcheck-inbox", daemon=True
        ).start()

    def next(self) -> Message | None:
        """Return the oldest message that was not taken yet, None if there is none."""
        try:
            return self._messages.get_nowait()
        except queue.Empty:
            return None

    def _read(self, pipe: IO[bytes]) -> None:
        """Read the descriptor itself: a buffer that this thread locks at exit aborts Python."""
        unread = b""
        while data := os.read(pipe.fileno(), 65_536):
            *lines, unread = (unread + data).split(b"\n")
            for line in lines:
                with suppress(msgspec.MsgspecError):
                    self._messages.put(json_decoder(Message).decode(line))
        self.ended.set()


def start_sidecar(session: Session, settings: Settings) -> None:
    """Start the sidecar of this node. It outlives us, and ends with the job."""
    process = start_linked_sidecar(session, settings, subprocess.DEVNULL)

    def reap() -> None:
        process.wait()

    try:  # it forks and exits within 0.5 s, see `sidecar`: reap the zombie
        start_thread(reap, "hangcheck-start")
    except NoRoom:
        reap()


def start_linked_sidecar(
    session: Session, settings: Settings, pipe: int = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start a sidecar that talks with its launcher over its standard input and output.

    Its own process group keeps Ctrl-C and a launcher's kill away, as it must report the end.
    """
    require_room(TASKS)
    return subprocess.Popen(
        own_command(MODULE, str(session.path)),
        stdin=pipe,
        stdout=pipe,
        env={**environment_with(environment_of_module(), settings), "CUDA_VISIBLE_DEVICES": ""},
        start_new_session=True,
    )
