"""What ranks record of their collectives, because torch records too little or at too high a cost.

Recorded are members of groups and messages (torch's record of gloo lacks them), and where the
newest calls were made: a ring of calls, and a line for each call site.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from struct import Struct as Layout
from threading import get_ident
from time import time_ns
from traceback import walk_stack
from typing import TYPE_CHECKING, TypeVar

import msgspec

from lightning_hangcheck import files
from lightning_hangcheck.model.codec import encode, json_decoder
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import CallSite, MessageCounts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType, FrameType

    About = tuple[str, str, str, int]
    Site = tuple[About | None, list[tuple[CodeType, int]], int, count[int]]

Noted = TypeVar("Noted", bound=msgspec.Struct)
COUNT, SLOT = Layout("<Q"), Layout("<QQQ")
MOST_SITES = 1_024
"""Limit, because a program that generates code while it runs must not fill the memory. Messages
count one site per rank sent to, and one per rank received from."""
CALLS_KEPT = 4_096
"""Twice what torch's own record keeps (TORCH_FR_BUFFER_SIZE), to hold the messages too: some steps
of a pipeline with 64 micro-batches, and two steps are a pattern."""
CALLS_AT = (MOST_SITES + 1) * COUNT.size
NOTES_BYTES = CALLS_AT + CALLS_KEPT * SLOT.size
LARGEST_SITES = 16 * 1024 * 1024
"""`MOST_SITES` sites of the deepest calls, with 250 bytes per frame."""
OURS = f"{Path(__file__).parents[1]}{os.sep}"  # our own frames around a call are not the program's
DEEPEST = 64  # frames recorded per site, from the innermost outwards: Lightning's own are about 30
NO_SITE: Site = None, [], 0, count(1)


class NotedGroup(msgspec.Struct, frozen=True):
    """A process group as one rank made it: ``ranks`` are its members, by global rank."""

    group: str
    ranks: tuple[int, ...]


class NotedSite(msgspec.Struct, frozen=True):
    """A call site of collectives, one for each root, reduction and group."""

    # ``group`` is that group's name; empty for the default group. For messages ``message`` is the
    # peer: ``peer + 1`` if sent to, ``-(peer + 1)`` if received from.

    site: int
    called: CallSite
    group: str = ""
    message: int = 0


class NotedCall(msgspec.Struct, frozen=True):
    """A call of a collective; ``site`` is the number of its call site."""

    at_ns: int
    thread: int
    site: int


class Notes(msgspec.Struct, frozen=True):
    """A rank's notes: groups by name, collectives, sites by number; messages, None if not all."""

    groups: dict[str, tuple[int, ...]] = {}
    calls: tuple[NotedCall, ...] = ()
    sites: dict[int, NotedSite] = {}
    messages: MessageCounts | None = None


def notes_file(server: Path, what: str) -> Path:
    """Return where a rank notes ``groups``, ``calls`` or ``sites``: beside its server's socket."""
    return server.with_name(f"{server.name}.{what}")


def note_group(server: Path, group: str, ranks: Sequence[int]) -> None:
    """Note that this rank makes a group; OSError if shared memory cannot be used."""
    files.make_private_folder(server.parent)
    _append(notes_file(server, "groups"), NotedGroup(group, tuple(ranks)))


class CallNoter:
    """Notes collectives and messages of this process; `OSError` if there is no room."""

    def __init__(self, server: Path) -> None:
        self._page = files.reserve_file(notes_file(server, "calls"), NOTES_BYTES)
        # stores into "L", the native 64-bit type, take a third of the time that packing takes
        self._slots = memoryview(self._page)[CALLS_AT:].cast("L")
        self._sites_file = notes_file(server, "sites")
        self._calls, self._numbers = count(), count(1)
        self._sites: dict[tuple[object, ...], Site] = {}
        self._last = 0
        self._after: dict[int, Site] = {}
        """By number of a site, what followed it the last time: loops repeat."""

    def note(
        self,
        caller: FrameType | None,
        root: str = "",
        reduction: str = "",
        group: str = "",
        message: int = 0,
    ) -> None:
        """Note a call; a new site is written. Messages need no caller."""
        # the processor's caches are full of other code here: each kind of operation takes several
        # times its time, and comparing with what is expected takes least
        about, frame = (root, reduction, group, message), caller
        same, way, number, calls = self._after.get(self._last, NO_SITE)
        if same == about:
            for code, at in way:
                if frame is None or frame.f_lasti != at or frame.f_code is not code:
                    same = None
                    break
                frame = frame.f_back
        if same != about or (frame is not None and len(way) < DEEPEST):
            site = self._after[self._last] = self._find(about, caller)
            _, _, number, calls = site
        self._last = number
        if message:  # messages are counted for good; a collective only while it is in the ring
            COUNT.pack_into(self._page, number * COUNT.size, next(calls))
        slots, at = self._slots, next(self._calls) % CALLS_KEPT * 3
        slots[at + 2] = 0  # until it is whole, no reader takes it
        slots[at], slots[at + 1] = time_ns(), get_ident()
        slots[at + 2] = number

    def _find(self, about: About, caller: FrameType | None) -> Site:
        """Return the site of a call, numbered if it is new; its number is 0 if there is no room."""
        frames = [frame for frame, _ in islice(walk_stack(caller), DEEPEST)] if caller else []
        way = [(frame.f_code, frame.f_lasti) for frame in frames]
        exact = about, *((id(code), at) for code, at in way)  # ids stay unique: codes are kept
        site = self._sites.get(exact)
        if site is not None:
            return site
        number = next(self._numbers)
        if number > MOST_SITES:
            return about, way, 0, count(1)
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
        root, reduction, group, message = about
        noted = NotedSite(number, CallSite(called, root, reduction), group, message)
        try:
            _append(self._sites_file, noted)
        except OSError:  # shared memory is full
            number = 0
        return self._sites.setdefault(exact, (about, way, number, count(1)))


def noted(server: Path) -> Notes:
    """Return a rank's notes; empty if it notes nothing; of a name used twice, the newest."""
    lines = _lines(notes_file(server, "groups"), NotedGroup)
    groups = {group.group: group.ranks for group in lines}
    try:
        data = files.read_owned(notes_file(server, "calls"))
    except FileNotFoundError:
        # a rank that notes groups notes messages too: without a file it has posted none
        begun = notes_file(server, "groups").exists()
        return Notes(groups, messages=MessageCounts() if begun else None)
    except OSError:
        data = b""
    if len(data) != NOTES_BYTES:
        return Notes(groups)
    (overflown,), *counted = COUNT.iter_unpack(data[:CALLS_AT])
    slots = sorted(slot for slot in SLOT.iter_unpack(data[CALLS_AT:]) if slot[0] and slot[2])
    lines_of_sites = _lines(notes_file(server, "sites"), NotedSite, LARGEST_SITES) if slots else []
    sites = {site.site: site for site in lines_of_sites}
    sent: Counter[int] = Counter()
    received: Counter[int] = Counter()
    for number, (posted,) in enumerate(counted, 1):
        message = sites[number].message if posted and number in sites else 0
        if message:
            (sent if message > 0 else received)[abs(message) - 1] += posted
    calls: list[NotedCall] = []
    newest: dict[int, list[int]] = {}  # order of each thread's messages
    for at_ns, thread, number in slots:
        message = sites[number].message if number in sites else 0
        if message:
            newest.setdefault(thread, []).append(message)
        else:
            calls.append(NotedCall(at_ns, thread, number))
    orders = tuple(map(tuple, newest.values()))
    messages = MessageCounts(sent=dict(sent), received=dict(received), newest=orders)
    own = {number: site for number, site in sites.items() if not site.message}
    return Notes(groups, tuple(calls), own, None if overflown else messages)


def last_meeting(server: Path) -> tuple[tuple[int, ...], tuple[Frame, ...]]:
    """Return the members (none: all) and the call site of a rank's last collective, if noted."""
    notes = noted(server)
    site = notes.sites.get(notes.calls[-1].site) if notes.calls else None
    return (notes.groups.get(site.group, ()), site.called.frames) if site is not None else ((), ())


def _append(file: Path, line: msgspec.Struct) -> None:
    data = encode(line) + b"\n"
    with os.fdopen(files.open_for_append(file), "ab", buffering=0) as notes:
        if notes.write(data) < len(data):
            raise OSError("only a part was written")


def _lines(file: Path, kind: type[Noted], largest: int = files.FACT_BYTES) -> list[Noted]:
    found = []
    with suppress(OSError):
        for line in files.read_owned(file, largest).splitlines():
            with suppress(msgspec.MsgspecError):  # a line that is being written
                found.append(json_decoder(kind).decode(line))
    return found
