"""What a rank notes of its process groups and messages, because torch's record of gloo lacks it.

    <session>/torch/<pid>.groups     a JSON object a line: a group's name and its members
    <session>/torch/<pid>.messages   two counters for each rank: sent to it, received from it; then
                                     a ring of the newest: number, thread, what was posted to whom

Both lie in shared memory: a note is a store into a mapped page, or one write, and waits for
nothing.
"""

from __future__ import annotations

import mmap
import os
from itertools import count
from struct import Struct as Layout
from threading import get_ident
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.files.atomic import make_private_folder
from lightning_hangcheck.files.owned_file import open_owned, read_owned
from lightning_hangcheck.model.flight import MessageCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

COUNTER = Layout("<Q")
MOST_RANKS = 65_536
"""A file of 1 MiB, of which only pages that are used take memory."""
POSTED = Layout("<QQq")
POSTED_KEPT = 1_024
"""Of a pipeline with 64 micro-batches four steps: two are a pattern."""
RING_AT = MOST_RANKS * 2 * COUNTER.size


class NotedGroup(msgspec.Struct, frozen=True):
    """A process group as one rank made it: ``ranks`` are its members, by global rank."""

    group: str
    ranks: tuple[int, ...]


def groups_file(server: Path) -> Path:
    """Return where the rank notes its groups, beside its worker server's socket."""
    return server.with_name(f"{server.name}.groups")


def messages_file(server: Path) -> Path:
    """Return where the rank counts its messages."""
    return server.with_name(f"{server.name}.messages")


def note_group(server: Path, group: str, ranks: Sequence[int]) -> None:
    """Note that this rank makes a group.

    Args:
        server: Path of the rank's worker server.
        group: As torch's record names it.
        ranks: Its members, by global rank.

    Raises:
        OSError: Shared memory cannot be used.
    """
    make_private_folder(server.parent)
    line = msgspec.json.encode(NotedGroup(group, tuple(ranks))) + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    descriptor = os.open(groups_file(server), flags, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def noted_groups(server: Path) -> dict[str, tuple[int, ...]]:
    """Return the members of each group that a rank noted; of a name used again the newest."""
    found: dict[str, tuple[int, ...]] = {}
    try:
        lines = read_owned(groups_file(server)).splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            noted = msgspec.json.decode(line, type=NotedGroup)
        except msgspec.MsgspecError:  # a line that is just being written
            continue
        found[noted.group] = noted.ranks
    return found


class MessageCounter:
    """Counts messages of this process, for whoever looks at it from outside.

    Args:
        server: Path of the rank's worker server.

    Raises:
        OSError: Shared memory cannot be used.
    """

    def __init__(self, server: Path) -> None:
        make_private_folder(server.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(messages_file(server), flags, 0o600)
        size = RING_AT + POSTED_KEPT * POSTED.size
        try:
            os.ftruncate(descriptor, size)
            self._page = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._sent: dict[int, Iterator[int]] = {}
        self._received: dict[int, Iterator[int]] = {}
        self._posted = count(1)

    def post_send(self, peer: int) -> None:
        """Count a message to a rank; about 0.5 microseconds."""
        if 0 <= peer < MOST_RANKS:
            number = next(self._sent.get(peer) or self._sent.setdefault(peer, count(1)))
            COUNTER.pack_into(self._page, 2 * peer * COUNTER.size, number)
            self._note(peer + 1)

    def post_receive(self, peer: int) -> None:
        """Count that a message from a rank is asked for."""
        if 0 <= peer < MOST_RANKS:
            number = next(self._received.get(peer) or self._received.setdefault(peer, count(1)))
            COUNTER.pack_into(self._page, (2 * peer + 1) * COUNTER.size, number)
            self._note(-(peer + 1))

    def _note(self, posted: int) -> None:
        number = next(self._posted)
        offset = RING_AT + number % POSTED_KEPT * POSTED.size
        POSTED.pack_into(self._page, offset, number, get_ident(), posted)


def noted_messages(server: Path, ranks: int) -> MessageCounts | None:
    """Return what a rank counted; None where it counts nothing.

    Args:
        server: Path of the rank's worker server.
        ranks: How many there are at most.
    """
    try:
        descriptor = open_owned(messages_file(server))
    except OSError:
        return None
    try:
        data = os.read(descriptor, min(ranks, MOST_RANKS) * 2 * COUNTER.size)
        ring = os.pread(descriptor, POSTED_KEPT * POSTED.size, RING_AT)
    finally:
        os.close(descriptor)
    whole = data[: len(data) // COUNTER.size * COUNTER.size]
    numbers = [number for (number,) in COUNTER.iter_unpack(whole)]
    return MessageCounts(
        sent={peer: number for peer, number in enumerate(numbers[0::2]) if number},
        received={peer: number for peer, number in enumerate(numbers[1::2]) if number},
        newest=_by_thread(ring[: len(ring) // POSTED.size * POSTED.size]),
    )


def _by_thread(ring: bytes) -> tuple[tuple[int, ...], ...]:
    """Return what each thread posted, of the numbers that follow each other up to the newest."""
    slots = sorted((slot for slot in POSTED.iter_unpack(ring) if slot[0] and slot[2]), reverse=True)
    kept = [slot for back, slot in enumerate(slots) if slot[0] == slots[0][0] - back]
    found: dict[int, list[int]] = {}
    for _, thread, posted in reversed(kept):
        found.setdefault(thread, []).append(posted)
    return tuple(map(tuple, found.values()))
