"""The journal: one JSON object a line, appended by a thread of its own.

Each line holds ``at`` (ISO 8601 UTC), ``ns`` (CLOCK_MONOTONIC, comparable between the ranks of a
host), ``pid``, ``kind``, and what belongs to its kind. Training only queues an entry: a full or
stalled disk costs lines, which are counted, and never time. Lines that come close together are
written together, so that training does not share the interpreter with this thread at each of them.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder
from lightning_hangcheck.machine.own_thread import start_thread
from lightning_hangcheck.model.plain_text import visible_json
from lightning_hangcheck.model.redaction import HIDDEN, redact_text, redact_value
from lightning_hangcheck.rundir.atomic import open_for_append

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.rundir.layout import RunFolder

MOST_WAITING = 10_000
# a rank that never learns its number writes to ranks/pid-<PID>.jsonl once so many lines wait
MOST_UNSETTLED = 1_000
# the page shows the newest of these at once, should the process die in this time
GATHER_S = 0.05
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Entry(Struct, frozen=True):
    """A line that waits to be written."""

    kind: str
    fields: dict[str, object]
    at_ns: int
    monotonic_ns: int


class _Settle(Struct, frozen=True):
    """From here on lines have a file, that of this rank; ``last``: and nothing comes after."""

    rank: int | None
    last: bool = False


class JournalWriter:
    """The journal of this process.

    Args:
        prepare: Makes the run folder and returns it; called in our thread, before the first line.
        rank: None while unknown: lines wait in memory until `settle`.
        ranks: That write one on this machine.

    Raises:
        NoRoom: There is none for its thread.
    """

    def __init__(self, prepare: Callable[[], RunFolder], rank: int | None, ranks: int = 1) -> None:
        self._prepare = prepare
        self._pid = os.getpid()
        self._queue: queue.SimpleQueue[Entry | _Settle] = queue.SimpleQueue()
        self._dropped = 0
        self._rank = rank
        self._settled = rank is not None
        self._descriptor: int | None = None
        self._broken = False
        self._closing = threading.Event()
        self._thread = start_thread(self._run, "hangcheck-journal", ranks)

    def add(self, kind: str, fields: dict[str, object]) -> None:
        """Have a line written, about a microsecond; it is left out while too many wait.

        Args:
            kind: What happened.
            fields: Values that JSON can hold; strings are redacted, other values shown by ``str``.
        """
        if self._queue.qsize() >= MOST_WAITING:
            self._dropped += 1
            return
        self._queue.put(Entry(kind, fields, time.time_ns(), time.monotonic_ns()))

    def settle(self, rank: int) -> None:
        """Name the file; a journal that has one keeps it."""
        self._queue.put(_Settle(rank))

    def close(self, limit_s: float) -> bool:
        """Write what waits.

        Args:
            limit_s: Seconds to wait for a slow disk.

        Returns:
            Whether all was written in time.
        """
        self._queue.put(_Settle(None, last=True))
        self._closing.set()
        self._thread.join(limit_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        unsettled: list[Entry] = []
        closed = False
        while not closed:
            for item in self._next_items():
                if isinstance(item, Entry):
                    unsettled.append(item)
                else:
                    closed = item.last
                    self._rank = self._rank if self._settled else item.rank
                    self._settled = True
            if self._settled or len(unsettled) > MOST_UNSETTLED:
                self._settled = True
                self._write(unsettled)
                unsettled = []

    def _next_items(self) -> list[Entry | _Settle]:
        """Wait for an item, then a moment for those that follow it, unless the end is near."""
        items = [self._queue.get()]
        self._closing.wait(GATHER_S)
        while True:
            try:
                items.append(self._queue.get_nowait())
            except queue.Empty:
                return items

    def _write(self, entries: list[Entry]) -> None:
        if self._broken or not entries:
            return
        if dropped := self._dropped:
            self._dropped = 0
            entries.append(
                Entry("dropped", {"lines": dropped}, time.time_ns(), time.monotonic_ns())
            )
            log.once("journal-dropped", "the journal is written too slowly; it lacks some lines")
        try:
            self._append(b"".join(encode_entry(entry, self._pid) for entry in entries))
        except (OSError, UnpreparedRunFolder) as error:
            self._broken = True
            sentence = "the journal cannot be written, training goes on without it"
            log.once("journal", f"{sentence}: {error}")

    def _append(self, lines: bytes) -> None:
        if self._descriptor is None:
            self._descriptor = _open_journal(self._prepare().journal(self._rank, self._pid))
        if os.write(self._descriptor, lines) < len(lines):
            raise OSError("the disk is full: it took only a part")


def encode_entry(entry: Entry, pid: int) -> bytes:
    """Encode a line, its newline included. Never fails: a value that JSON cannot hold is named."""
    head: dict[str, object] = {
        "at": _EPOCH + timedelta(microseconds=entry.at_ns // 1000),
        "ns": entry.monotonic_ns,
        "pid": pid,
        "kind": entry.kind,
    }
    try:
        fields = {name: _plain(value) for name, value in entry.fields.items()}
        return visible_json(msgspec.json.encode(head | fields)) + b"\n"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"its values cannot be written as JSON ({type(error).__name__})"
        return msgspec.json.encode({**head, "problem": problem}) + b"\n"


def _plain(value: object) -> object:
    """Redact strings wherever they stand, and show what JSON has no form for by its text."""
    if isinstance(value, str):
        return _plain_text(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, dict):
        return {_plain_text(str(key)): _plain_named(str(key), each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return _plain_text(str(value))


def _plain_named(name: str, value: object) -> object:
    told = isinstance(value, str) and redact_value(name, value) == HIDDEN
    return HIDDEN if told else _plain(value)


@lru_cache(maxsize=512)
def _plain_text(text: str) -> str:
    # undecodable bytes of an environment come as lone surrogates, which JSON cannot hold
    return redact_text(text).encode(errors="replace").decode()


def _open_journal(path: Path) -> int:
    """Open a journal; if its last line was torn, end it, so that ours begins on its own."""
    descriptor = open_for_append(path)
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        os.write(descriptor, b"\n")
    return descriptor
