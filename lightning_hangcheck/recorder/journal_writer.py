"""The journal: one JSON object per line, left in shared memory for the sidecar to write to disk.

Each line holds ``at`` (ISO 8601 UTC), ``ns`` (CLOCK_MONOTONIC, comparable between the ranks of a
host), ``pid``, ``kind``, and the fields of its kind. A line is stored into mapped memory: training
makes no system call, and nothing is lost if it is killed. A full or stalled disk costs lines, which
are counted, but never time. Only if no sidecar is there, or will be, a thread of the rank writes.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections import deque
from functools import lru_cache
from json.encoder import encode_basestring

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.machine import is_alive, start_thread
from lightning_hangcheck.recorder.page import encode
from lightning_hangcheck.session.journal_carrier import HEAD, POSITION, Carrier
from lightning_hangcheck.session.session import Session, read_sidecar
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import clock_text, visible_json

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Mapping


SEGMENT_BYTES = 32 * 2**10
MOST_SEGMENTS = 16
"""512 KiB of one rank's waiting lines, about 4,000: /dev/shm has 64 MB in a container by default,
and DataLoaders need it."""
MOST_WAITING = 10_000  # lines that wait in the rank's own memory while the segments are full
CARRY_EVERY_S = 0.5
SIDECAR_COMES_WITHIN_S = 5.0
"""HangCheck's sidecar announces itself within 1 s of the recorder's start. Until this time lines
wait for it, so that the rank need not touch the disk; without a sidecar the rank writes."""


class JournalWriter:
    """The journal of this process; `NoRoom` if it needs a thread and none can start."""

    def __init__(self, session: Session, rank: int | None, ranks: int = 1) -> None:
        self._session, self._pid = session, os.getpid()
        self._name = ""
        self._waiting: deque[bytes] = deque()
        self._dropped = 0
        # whoever has it stores all waiting lines; the others leave theirs to it
        self._turn = _thread.allocate_lock()
        self._segments: list[str] = []
        self._memory, self._at, self._end = memoryview(b""), 0, 0
        self._full_until_s = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        if rank is not None:
            self.settle(rank)
        if not session.facts.launched:  # else its launcher keeps a sidecar running
            self._thread = start_thread(self._carry_if_alone, "hangcheck-journal", ranks)

    def add(self, kind: str, fields: Mapping[str, object]) -> None:
        """Write a line, in a few microseconds; any thread and signal handler may call this."""
        if len(self._waiting) >= MOST_WAITING:
            self._dropped += 1
        else:
            self._waiting.append(encode_entry(kind, fields, self._pid))
            self.flush()

    def settle(self, rank: int | None) -> None:
        """Name the file, by the process id if the rank is unknown; later calls change nothing."""
        self._name = self._name or self._session.run_folder.journal(rank, self._pid).name
        self.flush()

    def close(self, limit_s: float) -> None:
        """Leave all lines to the sidecar; without one, write them to disk within the limit."""
        self.settle(None)
        self._closing.set()
        if self._thread is None:
            self.flush(is_last=True)
        else:
            self._thread.join(limit_s)

    def flush(self, *, is_last: bool = False) -> None:
        """Store waiting lines as far as there is room, unless another call does.

        At the end, lines without room are counted.
        """
        if not self._turn.acquire(blocking=False):
            return
        try:
            if self._name and self._segments and self._segments[-1].endswith("."):
                unnamed = self._segments[-1]
                self._segments[-1] += self._name
                os.rename(unnamed, self._segments[-1])  # noqa: PTH104 - names, no paths
            while self._waiting and self._has_room(len(self._waiting[0])):
                self._store(self._waiting.popleft())
            if is_last:
                self._dropped += len(self._waiting)
                self._waiting.clear()
                if self._dropped:
                    self._begin_segment(0)
        except OSError as error:
            log.once("journal", f"the journal lacks lines, training goes on without them: {error}")
        finally:
            self._turn.release()

    def _store(self, line: bytes) -> None:
        end = self._at + len(line)
        self._memory[self._at : end] = line
        POSITION.pack_into(self._memory, 0, end)
        self._at = end

    def _has_room(self, size: int) -> bool:
        if self._at + size <= self._end:
            return True
        now_s = time.monotonic()
        if now_s < self._full_until_s:
            return False
        self._full_until_s = now_s + CARRY_EVERY_S
        self._segments = [name for name in self._segments if os.path.exists(name)]  # noqa: PTH110
        if len(self._segments) < MOST_SEGMENTS:
            self._begin_segment(size)
        return self._at + size <= self._end

    def _begin_segment(self, size: int) -> None:
        name = f"{time.monotonic_ns():020d}.{self._pid}.{self._name}"
        path = f"{self._session.journals}/{name}"
        descriptor = os.open(path, os.O_RDWR | files.NEW_FILE, files.PRIVATE_FILE)
        try:
            memory = files.reserve(descriptor, SEGMENT_BYTES + size)
        except OSError:
            os.unlink(path)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        self._segments.append(path)
        self._memory, self._at, self._end = memoryview(memory), HEAD.size, len(memory)
        self._full_until_s = 0.0
        dropped, self._dropped = self._dropped, 0
        if dropped:
            log.once("journal-dropped", "the journal is written too slowly; it lacks some lines")
            self._store(encode_entry("dropped", {"lines": dropped}, self._pid))

    def _carry_if_alone(self) -> None:
        """Write to disk while no other process does, or will."""
        # imported here: with a sidecar no rank needs it
        from lightning_hangcheck.session.run_folders import prepare_settled

        carrier = Carrier(self._session.journals, lambda: prepare_settled(self._session))
        wait_s = SIDECAR_COMES_WITHIN_S
        try:
            while True:
                is_last = self._closing.wait(wait_s)
                wait_s = CARRY_EVERY_S
                sidecar = read_sidecar(self._session.sidecar_file)
                alone = sidecar is None or not is_alive(sidecar.pid, sidecar.started_ticks)
                if alone:
                    carrier.carry(self._pid)
                    self._full_until_s = 0.0
                self.flush()
                if is_last and not (alone and self._waiting):
                    self.flush(is_last=True)
                    if alone:
                        carrier.carry(self._pid)
                    return
        except (OSError, UnpreparedRunFolder) as error:
            sentence = "the journal cannot be written, training goes on without it"
            log.once("journal", f"{sentence}: {error}")


def encode_entry(kind: str, fields: Mapping[str, object], pid: int) -> bytes:
    """Encode a line with its newline. Never fails: values that JSON cannot hold are reported."""
    at = clock_text(time.time_ns())
    line = head = f'{{"at":"{at}","ns":{time.monotonic_ns()},"pid":{pid},"kind":"{kind}"'
    try:
        for name, value in fields.items():
            line += f',"{name}":{encode(value, _quote)}'
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"its values cannot be written as JSON ({type(error).__name__})"
        line = f'{head},"problem":"{problem}"'
    return f"{line}}}\n".encode()


@lru_cache(maxsize=512)
def _quote(text: str) -> str:
    """Redact a text and encode it; undecodable bytes, as lone surrogates, become question marks."""
    return visible_json(encode_basestring(redact_text(text)).encode(errors="replace")).decode()
