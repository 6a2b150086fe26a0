"""The journal: one JSON object per line, appended by a thread of its own.

Each line holds ``at`` (ISO 8601 UTC), ``ns`` (CLOCK_MONOTONIC, comparable between the ranks of a
host), ``pid``, ``kind``, and the fields of its kind. Training only queues an entry. The thread puts
it into shared memory for the sidecar, which writes to disk. A full or stalled disk costs lines,
which are counted, but never time. Lines that come close together are written together, so that
training shares the interpreter less often with this thread.
"""

from __future__ import annotations

import json
import os
import threading
import time
from _queue import Empty, SimpleQueue  # without heaps, which take 0.5 ms
from contextlib import suppress
from functools import lru_cache
from math import isfinite

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.files import write_atomically
from lightning_hangcheck.machine import is_alive, start_thread
from lightning_hangcheck.session.session import Session, read_sidecar
from lightning_hangcheck.text.redaction import HIDDEN, redact_text, redact_value
from lightning_hangcheck.text.shown import clock_text, visible_json

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import NamedTuple

    from lightning_hangcheck.rundir import RunFolder
    from lightning_hangcheck.session.journal_carrier import Carrier
else:
    from lightning_hangcheck.plain import NamedTuple


MOST_WAITING = 10_000
MOST_LEFT_BYTES = 512 * 2**10
"""Limit of one rank's waiting lines, about 4,000: /dev/shm has 64 MB in a container by default, and
DataLoaders need it."""
# a rank without a known number writes to ranks/pid-<PID>.jsonl once so many lines wait
MOST_UNSETTLED = 1_000
# the page shows the newest of these at once, in case the process dies in this time
GATHER_S = 0.05
# about 50 kB: by so much the waiting lines may exceed their limit
MOST_TOGETHER = 500
WAIT_TO_BE_TAKEN_S = 0.5
SIDECAR_COMES_WITHIN_S = 5.0
"""HangCheck's sidecar announces itself within 1 s of the recorder's start. Until this time lines
wait for it, so that the rank need not touch the disk; without a sidecar the rank writes."""


class Entry(NamedTuple):
    """A line that waits to be written."""

    kind: str
    fields: dict[str, object]
    at_ns: int
    monotonic_ns: int


class JournalWriter:
    """The journal of this process, kept in the session; `NoRoom` if its thread cannot start."""

    # Lines of a rank whose number is unknown wait in memory. ``prepare`` makes the run folder, in
    # our thread, and only if nobody else collects the lines.

    def __init__(
        self,
        session: Session,
        prepare: Callable[[], RunFolder],
        rank: int | None,
        ranks: int = 1,
    ) -> None:
        self._session = session
        self._left: dict[Path, int] = {}
        self._prepare = prepare
        self._carrier: Carrier | None = None
        self._pid = os.getpid()
        self._alone_from = time.monotonic() + SIDECAR_COMES_WITHIN_S
        self._queue: SimpleQueue[Entry | None] = SimpleQueue()
        self._dropped = 0
        self._name = ""
        if rank is not None:
            self.settle(rank)
        self._closing = threading.Event()
        self._thread = start_thread(self._run, "hangcheck-journal", ranks)

    def add(self, kind: str, fields: dict[str, object]) -> None:
        """Queue a line, in about a microsecond; it is dropped while too many wait."""
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
            return
        self._queue.put(Entry(kind, fields, time.time_ns(), time.monotonic_ns()))

    def settle(self, rank: int | None) -> None:
        """Name the file, by the process id if the rank is unknown; later calls change nothing."""
        self._name = self._name or self._session.run_folder.journal(rank, self._pid).name

    def close(self, limit_s: float) -> bool:
        """Flush all lines, to disk if there is no sidecar; return whether that ended in time."""
        self._closing.set()
        self._queue.put(None)
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        unsettled: list[Entry] = []
        closed = False
        try:
            while not closed:
                items = self._next_items()
                closed = None in items
                unsettled += [item for item in items if item is not None]
                if closed or len(unsettled) > MOST_UNSETTLED:
                    self.settle(None)
                if self._name and unsettled:
                    self._leave_all(unsettled)
                    unsettled = []
            self._leave(self._dropped_so_far())
            self._carry_if_alone()
        except (OSError, UnpreparedRunFolder) as error:  # from here on lines are only counted
            sentence = "the journal cannot be written, training goes on without it"
            log.once("journal", f"{sentence}: {error}")

    def _next_items(self) -> list[Entry | None]:
        """Wait for an item, then briefly for more; meanwhile look after lines not collected yet."""
        items: list[Entry | None] = []
        while not items:
            waiting = self._waiting_bytes()
            if waiting:
                self._carry_if_alone()
            with suppress(Empty):
                items.append(self._queue.get(timeout=WAIT_TO_BE_TAKEN_S if waiting else None))
        self._closing.wait(GATHER_S)
        with suppress(Empty):
            while True:
                items.append(self._queue.get_nowait())
        return items

    def _leave_all(self, entries: list[Entry]) -> None:
        """Write lines to shared memory as room allows; count lines without room at the end."""
        for start in range(0, len(entries), MOST_TOGETHER):
            together = entries[start : start + MOST_TOGETHER]
            while self._waiting_bytes() >= MOST_LEFT_BYTES:
                at_the_end = self._closing.is_set()
                self._carry_if_alone()
                if at_the_end:  # then there is no time to wait for room
                    break
                self._closing.wait(WAIT_TO_BE_TAKEN_S)
            if self._waiting_bytes() < MOST_LEFT_BYTES:
                self._leave([*together, *self._dropped_so_far()])
                self._carry_if_alone()
            else:
                self._dropped += len(together)

    def _leave(self, entries: list[Entry]) -> None:
        if entries:
            lines = b"".join(encode_entry(entry, self._pid) for entry in entries)
            name = f"{time.monotonic_ns():020d}.{self._pid}.{self._name}"
            write_atomically(self._session.journals / name, lines)
            self._left[self._session.journals / name] = len(lines)

    def _waiting_bytes(self) -> int:
        self._left = {path: size for path, size in self._left.items() if path.exists()}
        return sum(self._left.values())

    def _dropped_so_far(self) -> list[Entry]:
        dropped, self._dropped = self._dropped, 0
        if not dropped:
            return []
        log.once("journal-dropped", "the journal is written too slowly; it lacks some lines")
        return [Entry("dropped", {"lines": dropped}, time.time_ns(), time.monotonic_ns())]

    def _carry_if_alone(self) -> None:
        """Write to disk if no other process does, or will."""
        if self._session.facts.launched:
            return  # its launcher keeps a sidecar running
        if self._closing.is_set() or time.monotonic() >= self._alone_from:
            sidecar = read_sidecar(self._session.sidecar_file)
            if sidecar is None or not is_alive(sidecar.pid, sidecar.started_ticks):
                # imported here: with a sidecar no rank needs it
                from lightning_hangcheck.session.journal_carrier import Carrier

                self._carrier = self._carrier or Carrier(self._session.journals, self._prepare)
                self._carrier.carry(only_pid=self._pid)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def encode_entry(entry: Entry, pid: int) -> bytes:
    """Encode a line with its newline. Never fails: values that JSON cannot hold are reported."""
    head: dict[str, object] = {
        "at": clock_text(entry.at_ns),
        "ns": entry.monotonic_ns,
        "pid": pid,
        "kind": entry.kind,
    }
    try:
        fields = {name: _plain(value) for name, value in entry.fields.items()}
        return visible_json(_encode(head | fields).encode()) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"its values cannot be written as JSON ({type(error).__name__})"
        return _encode({**head, "problem": problem}).encode() + b"\n"


def _plain(value: object) -> object:
    """Redact all strings, and convert values that JSON cannot hold to text."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if not isinstance(value, dict):
        return _plain_text(str(value))
    found: dict[str, object] = {}
    for key, inner in value.items():
        hidden = isinstance(inner, str) and redact_value(str(key), inner) == HIDDEN
        found[_plain_text(str(key))] = HIDDEN if hidden else _plain(inner)
    return found


@lru_cache(maxsize=512)
def _plain_text(text: str) -> str:
    # undecodable bytes of an environment become lone surrogates, which JSON cannot hold
    return redact_text(text).encode(errors="replace").decode()
