"""What a rank notes of its process groups and messages, because torch's record of gloo lacks it.

    <session>/torch/<pid>.groups     a JSON object a line: a group's name and its members
    <session>/torch/<pid>.messages   a ring of the newest: number, thread, what was posted to whom;
                                     then a slot for each rank that it exchanges any with

Both lie in shared memory: a note is a store into a mapped page, or one write, and waits for
nothing.
"""

from __future__ import annotations

import os
from itertools import count
from struct import Struct as Layout
from threading import get_ident
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.files.atomic import make_private_folder
from lightning_hangcheck.files.owned_file import read_owned
from lightning_hangcheck.files.reserved_memory import reserve_file
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.model.flight import MessageCounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

POSTED = Layout("<QQq")
POSTED_KEPT = 1_024
"""Of a pipeline with 64 micro-batches four steps: two are a pattern."""
SENT = RECEIVED = NUMBER = Layout("<Q")
COUNTS = Layout("<QQQ")
"""Messages to a rank, from it, and its number plus one: 0 in a slot that nobody has."""
MOST_PEERS = 1_024
"""With how many ranks one exchanges messages: its neighbours in a mesh, or the experts' ranks."""
COUNTS_AT = POSTED_KEPT * POSTED.size
MESSAGES_BYTES = COUNTS_AT + (MOST_PEERS + 1) * COUNTS.size


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
            noted = json_decoder(NotedGroup).decode(line)
        except msgspec.MsgspecError:  # a line that is just being written
            continue
        found[noted.group] = noted.ranks
    return found


class MessageCounter:
    """Counts messages of this process, for whoever looks at it from outside.

    Args:
        server: Path of the rank's worker server.

    Raises:
        OSError: Shared memory is full, or not ours.
    """

    def __init__(self, server: Path) -> None:
        self._page = reserve_file(messages_file(server), MESSAGES_BYTES)
        self._places: dict[int, _Place] = {}
        self._slots = count()
        self._posted = count(1)

    def post_send(self, peer: int) -> None:
        """Count a message to a rank; about 0.5 microseconds."""
        place = self._places.get(peer) or self._begin(peer)
        SENT.pack_into(self._page, place.at, next(place.sent))
        self._note(peer + 1)

    def post_receive(self, peer: int) -> None:
        """Count that a message from a rank is asked for."""
        place = self._places.get(peer) or self._begin(peer)
        RECEIVED.pack_into(self._page, place.at + SENT.size, next(place.received))
        self._note(-(peer + 1))

    def _begin(self, peer: int) -> _Place:
        """Take a slot; beyond the last one is room for one that says that not all were counted."""
        slot = min(next(self._slots), MOST_PEERS)
        place = self._places.setdefault(peer, _Place(COUNTS_AT + slot * COUNTS.size))
        NUMBER.pack_into(self._page, place.at + COUNTS.size - NUMBER.size, peer + 1)
        return place

    def _note(self, posted: int) -> None:
        number = next(self._posted)
        offset = number % POSTED_KEPT * POSTED.size
        POSTED.pack_into(self._page, offset, number, get_ident(), posted)


class _Place:
    """Where the messages to and from one rank are counted, and the next numbers of both."""

    __slots__ = ("at", "received", "sent")

    def __init__(self, at: int) -> None:
        self.at, self.sent, self.received = at, count(1), count(1)


def noted_messages(server: Path) -> MessageCounts | None:
    """Return what a rank counted; None where it had no room to count all.

    Who notes groups counts messages, too: one that has not begun to has posted none.

    Args:
        server: Path of the rank's worker server.
    """
    try:
        data = read_owned(messages_file(server))
    except FileNotFoundError:
        return MessageCounts() if groups_file(server).exists() else None
    except OSError:
        return None
    if len(data) != MESSAGES_BYTES:
        return None
    *counts, (_, _, overflown) = COUNTS.iter_unpack(data[COUNTS_AT:])
    if overflown:
        return None
    return MessageCounts(
        sent={number - 1: sent for sent, _, number in counts if number and sent},
        received={number - 1: asked for _, asked, number in counts if number and asked},
        newest=_by_thread(data[:COUNTS_AT]),
    )


def _by_thread(ring: bytes) -> tuple[tuple[int, ...], ...]:
    """Return what each thread posted, of the numbers that follow each other up to the newest."""
    slots = sorted((slot for slot in POSTED.iter_unpack(ring) if slot[0] and slot[2]), reverse=True)
    kept = [slot for back, slot in enumerate(slots) if slot[0] == slots[0][0] - back]
    found: dict[int, list[int]] = {}
    for _, thread, posted in reversed(kept):
        found.setdefault(thread, []).append(posted)
    return tuple(map(tuple, found.values()))
