"""From where a rank called its newest collectives, because torch tells that at too high a price.

    <session>/torch/<pid>.calls   a ring of slots: when, in which thread, from which site
    <session>/torch/<pid>.sites   a JSON object a line: a site's number and the frames down to it

torch 2.13 keeps the frames, too, but works out their names with the interpreter lock held, 5 ms an
operation. Both files lie in shared memory: a note is a store into a mapped page.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from struct import Struct as Layout
from threading import get_ident
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.files.owned_file import open_owned, read_owned
from lightning_hangcheck.files.reserved_memory import reserve_file
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.decoders import json_decoder
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.flight import CallSite

if TYPE_CHECKING:
    from types import CodeType, FrameType

SLOT = Layout("<QQQ")
CALLS_KEPT = 2_000
"""As many operations as torch's own record keeps (TORCH_FR_BUFFER_SIZE)."""
MOST_SITES = 1_024
"""Noted at most: a program that makes its code as it runs must not fill the memory."""
LARGEST_SITES = 16 * 1024 * 1024
"""As many, of the deepest calls, with 250 bytes a frame."""
OURS = str(Path(__file__).parents[2])
"""Frames of ours around a call are none of the program's."""
DEEPEST = 64
"""Frames noted of a site, from the innermost out: Lightning's own are some 30."""
UNKNOWN_SITE: tuple[int, tuple[CodeType, ...]] = (0, ())


class NotedCall(msgspec.Struct, frozen=True):
    """A call of a collective: ``site`` is the number of the place that it came from."""

    at_ns: int
    thread: int
    site: int


class NotedSite(msgspec.Struct, frozen=True):
    """A place that collectives are called from; one for each root and reduction."""

    site: int
    called: CallSite


class CallNoter:
    """Notes the collectives of this process, for whoever looks at it from outside.

    Args:
        server: Path of the rank's worker server.

    Raises:
        OSError: Shared memory is full, or not ours.
    """

    def __init__(self, server: Path) -> None:
        self._page = reserve_file(_calls_file(server), CALLS_KEPT * SLOT.size)
        self._sites_file = _sites_file(server)
        self._calls = count()
        self._numbers = count(1)
        self._known: dict[tuple[int | str, ...], tuple[int, tuple[CodeType, ...]]] = {}

    def note(self, caller: FrameType, root: str = "", reduction: str = "") -> None:
        """Note a call; about 0.1 microseconds a frame, and a write where the site is new.

        Args:
            caller: The frame that calls.
            root: As in `CallSite`.
            reduction: As in `CallSite`.
        """
        way: list[int | str] = [root, reduction]
        frame: FrameType | None = caller
        while frame is not None and len(way) < 2 * DEEPEST:
            way += (id(frame.f_code), frame.f_lasti)
            frame = frame.f_back
        key = tuple(way)
        known = self._known.get(key) or self._learn(key, caller, root, reduction)
        offset = next(self._calls) % CALLS_KEPT * SLOT.size
        SLOT.pack_into(self._page, offset, time.time_ns(), get_ident(), known[0])

    def _learn(
        self, key: tuple[int | str, ...], caller: FrameType, root: str, reduction: str
    ) -> tuple[int, tuple[CodeType, ...]]:
        """Number a new site; its code is kept, so that its key is never another's.

        Returns:
            Its number, 0 where there is no room for it, and that code.
        """
        if len(self._known) >= MOST_SITES:
            return UNKNOWN_SITE
        frames: list[FrameType] = []
        frame: FrameType | None = caller
        while frame is not None and len(frames) < DEEPEST:
            frames.append(frame)
            frame = frame.f_back
        number, codes = next(self._numbers), tuple(one.f_code for one in frames)
        called = tuple(
            Frame(_name(one.f_code), one.f_code.co_filename, one.f_lineno or 0)
            for one in reversed(frames)
            if not one.f_code.co_filename.startswith(OURS)
        )
        line = encode(NotedSite(number, CallSite(called, root, reduction))) + b"\n"
        written = self._written(line)
        return self._known.setdefault(key, (number, codes) if written else UNKNOWN_SITE)

    def _written(self, line: bytes) -> bool:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            descriptor = os.open(self._sites_file, flags, 0o600)
        except OSError:
            return False
        try:
            return os.write(descriptor, line) == len(line)
        except OSError:  # shared memory is full
            return False
        finally:
            os.close(descriptor)


def noted_calls(server: Path) -> tuple[NotedCall, ...]:
    """Return the newest calls that a rank noted, oldest first; none where it notes nothing.

    Args:
        server: Path of the rank's worker server.
    """
    try:
        descriptor = open_owned(_calls_file(server))
    except OSError:
        return ()
    try:
        data = os.read(descriptor, CALLS_KEPT * SLOT.size)
    finally:
        os.close(descriptor)
    calls = (NotedCall(*slot) for slot in SLOT.iter_unpack(data) if slot[0] and slot[2])
    return tuple(sorted(calls, key=lambda call: call.at_ns))


def noted_sites(server: Path) -> dict[int, CallSite]:
    """Return the places that a rank's collectives were called from, by number.

    Args:
        server: Path of the rank's worker server.
    """
    found: dict[int, CallSite] = {}
    try:
        lines = read_owned(_sites_file(server), LARGEST_SITES).splitlines()
    except OSError:
        return found
    for line in lines:
        try:
            noted = json_decoder(NotedSite).decode(line)
        except msgspec.MsgspecError:  # a line that is just being written
            continue
        found[noted.site] = noted.called
    return found


def _calls_file(server: Path) -> Path:
    return server.with_name(f"{server.name}.calls")


def _sites_file(server: Path) -> Path:
    return server.with_name(f"{server.name}.sites")


def _name(code: CodeType) -> str:
    """Return the name that py-spy shows: with its class from Python 3.11 on."""
    return str(getattr(code, "co_qualname", code.co_name))
