"""What ranks note of their collectives: torch tells too little of it, or at too high a price.

Groups and messages (its record of gloo lacks them), and from where the newest calls were made.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from struct import Struct as Layout
from threading import get_ident
from traceback import walk_stack
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lightning_hangcheck.files.safe import (
    FACT_BYTES,
    make_private_folder,
    open_for_append,
    read_owned,
    reserve_file,
)
from lightning_hangcheck.model.codec import encode, json_decoder
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import CallSite, MessageCounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType


POSTED = Layout("<QQq")
POSTED_KEPT = 1_024
"""Of a pipeline with 64 micro-batches four steps: two are a pattern."""
NUMBER, COUNTS = Layout("<Q"), Layout("<QQQ")
"""Messages to a rank, from it, and its number plus one: 0 in a slot that nobody has."""
MOST_PEERS = 1_024
"""With how many ranks one exchanges messages: its neighbours in a mesh, or the experts' ranks."""
COUNTS_AT = POSTED_KEPT * POSTED.size
MESSAGES_BYTES = COUNTS_AT + (MOST_PEERS + 1) * COUNTS.size


Noted = TypeVar("Noted", bound=msgspec.Struct)


class NotedGroup(msgspec.Struct, frozen=True):
    """A process group as one rank made it: ``ranks`` are its members, by global rank."""

    group: str
    ranks: tuple[int, ...]


def notes_file(server: Path, what: str) -> Path:
    """Return where a rank notes its ``groups``, ``messages``, ``calls`` and their ``sites``.

    They are beside the socket of its worker server.
    """
    return server.with_name(f"{server.name}.{what}")


def note_group(server: Path, group: str, ranks: Sequence[int]) -> None:
    """Note that this rank makes a group; OSError where shared memory cannot be used."""
    make_private_folder(server.parent)
    _append(notes_file(server, "groups"), NotedGroup(group, tuple(ranks)))


def noted_groups(server: Path) -> dict[str, tuple[int, ...]]:
    """Return the members of each group that a rank noted; of a name used again the newest."""
    return {group.group: group.ranks for group in _noted(notes_file(server, "groups"), NotedGroup)}


class MessageCounter:
    """Counts messages of this process in shared memory; `OSError` where there is no room."""

    def __init__(self, server: Path) -> None:
        self._page = reserve_file(notes_file(server, "messages"), MESSAGES_BYTES)
        # of each peer: where its messages are counted, and the next numbers to it and from it
        self._peers: dict[int, tuple[int, count[int], count[int]]] = {}
        self._slots = count()
        self._posted = count(1)

    def post_send(self, peer: int) -> None:
        """Count a message to a rank; about 0.5 microseconds."""
        at, sent, _ = self._peers.get(peer) or self._begin(peer)
        NUMBER.pack_into(self._page, at, next(sent))
        self._note(peer + 1)

    def post_receive(self, peer: int) -> None:
        """Count that a message from a rank is asked for."""
        at, _, received = self._peers.get(peer) or self._begin(peer)
        NUMBER.pack_into(self._page, at + NUMBER.size, next(received))
        self._note(-(peer + 1))

    def _begin(self, peer: int) -> tuple[int, count[int], count[int]]:
        """Take a slot; beyond the last one is room for one that says that not all were counted."""
        at = COUNTS_AT + min(next(self._slots), MOST_PEERS) * COUNTS.size
        begun = self._peers.setdefault(peer, (at, count(1), count(1)))
        NUMBER.pack_into(self._page, begun[0] + 2 * NUMBER.size, peer + 1)
        return begun

    def _note(self, posted: int) -> None:
        number = next(self._posted)
        offset = number % POSTED_KEPT * POSTED.size
        POSTED.pack_into(self._page, offset, number, get_ident(), posted)


def noted_messages(server: Path) -> MessageCounts | None:
    """Return what a rank counted; None where it had no room to count all.

    Who notes groups counts messages, too: one that has not begun to has posted none.
    """
    try:
        data = read_owned(notes_file(server, "messages"))
    except FileNotFoundError:
        return MessageCounts() if notes_file(server, "groups").exists() else None
    except OSError:
        return None
    if len(data) != MESSAGES_BYTES:
        return None
    *counts, (_, _, overflown) = COUNTS.iter_unpack(data[COUNTS_AT:])
    if overflown:
        return None
    # what each thread posted, of the numbers that follow each other up to the newest
    ring = sorted(one for one in POSTED.iter_unpack(data[:COUNTS_AT]) if one[0] and one[2])
    by_thread: dict[int, list[int]] = {}
    for ahead, (number, thread, posted) in enumerate(ring, 1 - len(ring)):
        if number == ring[-1][0] + ahead:
            by_thread.setdefault(thread, []).append(posted)
    return MessageCounts(
        sent={number - 1: sent for sent, _, number in counts if number and sent},
        received={number - 1: asked for _, asked, number in counts if number and asked},
        newest=tuple(map(tuple, by_thread.values())),
    )


SLOT = Layout("<QQQ")
CALLS_KEPT = 2_000
"""As many operations as torch's own record keeps (TORCH_FR_BUFFER_SIZE)."""
MOST_SITES = 1_024
"""Noted at most: a program that makes its code as it runs must not fill the memory."""
LARGEST_SITES = 16 * 1024 * 1024
"""As many, of the deepest calls, with 250 bytes a frame."""
OURS = f"{Path(__file__).parents[1]}{os.sep}"
"""Frames of ours around a call are none of the program's."""
DEEPEST = 64
"""Frames noted of a site, from the innermost out: Lightning's own are some 30."""


class NotedCall(msgspec.Struct, frozen=True):
    """A call of a collective: ``site`` is the number of the place that it came from."""

    at_ns: int
    thread: int
    site: int


class NotedSite(msgspec.Struct, frozen=True):
    """A place that collectives are called from; one for each root, reduction and group.

    ``group`` is the name of that; empty where it is the default one.
    """

    site: int
    called: CallSite
    group: str = ""


class CallNoter:
    """Notes the collectives of this process in shared memory; `OSError` where there is no room."""

    def __init__(self, server: Path) -> None:
        self._page = reserve_file(notes_file(server, "calls"), CALLS_KEPT * SLOT.size)
        self._sites_file = notes_file(server, "sites")
        self._calls = count()
        self._numbers = count(1)
        self._known: dict[tuple[int | str, ...], tuple[int, list[CodeType]]] = {}

    def note(self, caller: FrameType, root: str = "", reduction: str = "", group: str = "") -> None:
        """Note a call; about 0.1 microseconds a frame, and a write where the site is new."""
        way: list[int | str] = [root, reduction, group]
        frame: FrameType | None = caller
        while frame is not None and len(way) < 2 * DEEPEST:
            way += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        key = tuple(way)
        number, _ = self._known.get(key) or self._learn(key, caller)
        offset = next(self._calls) % CALLS_KEPT * SLOT.size
        SLOT.pack_into(self._page, offset, time.time_ns(), get_ident(), number)

    def _learn(self, key: tuple[int | str, ...], caller: FrameType) -> tuple[int, list[CodeType]]:
        """Number a new site, 0 without room; its code is kept, so that its key stays its own."""
        if len(self._known) >= MOST_SITES:
            return 0, []
        root, reduction, group = map(str, key[:3])
        frames = [one for one, _ in islice(walk_stack(caller), DEEPEST)]
        called = tuple(
            # named as py-spy does: with its class from Python 3.11 on
            Frame(
                str(getattr(frame.f_code, "co_qualname", frame.f_code.co_name)),
                frame.f_code.co_filename,
                frame.f_lineno or 0,
            )
            for frame in reversed(frames)
            if not frame.f_code.co_filename.startswith(OURS)
        )
        known = next(self._numbers), [frame.f_code for frame in frames]
        try:
            site = NotedSite(known[0], CallSite(called, root, reduction), group)
            _append(self._sites_file, site)
        except OSError:  # shared memory is full
            known = 0, []
        return self._known.setdefault(key, known)


def noted_calls(server: Path) -> tuple[NotedCall, ...]:
    """Return the newest calls that a rank noted, oldest first; none where it notes nothing."""
    try:
        data = read_owned(notes_file(server, "calls"))
    except OSError:
        return ()
    data = data[: len(data) - len(data) % SLOT.size]
    calls = (NotedCall(*slot) for slot in SLOT.iter_unpack(data) if slot[0] and slot[2])
    return tuple(sorted(calls, key=lambda call: call.at_ns))


def noted_sites(server: Path) -> dict[int, CallSite]:
    """Return the places that a rank's collectives were called from, by number."""
    noted = _noted(notes_file(server, "sites"), NotedSite, LARGEST_SITES)
    return {site.site: site.called for site in noted}


def last_meeting(server: Path) -> tuple[tuple[int, ...], tuple[Frame, ...]]:
    """Return the members of the group in which a rank called a collective last, and from where.

    None of both where it noted no call, and no members of the default group: all ranks.
    """
    newest = noted_calls(server)[-1:]
    for site in _noted(notes_file(server, "sites"), NotedSite, LARGEST_SITES) if newest else ():
        if site.site == newest[0].site:
            return noted_groups(server).get(site.group, ()), site.called.frames
    return (), ()


def _append(file: Path, noted: msgspec.Struct) -> None:
    line = encode(noted) + b"\n"
    with os.fdopen(open_for_append(file), "ab", buffering=0) as notes:
        if notes.write(line) < len(line):
            raise OSError("only a part was written")


def _noted(file: Path, kind: type[Noted], largest: int = FACT_BYTES) -> list[Noted]:
    found = []
    with suppress(OSError):
        for line in read_owned(file, largest).splitlines():
            with suppress(msgspec.MsgspecError):  # a line that is just being written
                found.append(json_decoder(kind).decode(line))
    return found
