"""beat(): one call into C that stores a count and the clock on the page."""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING

from lightning_hangcheck.recorder.page import layout as layout

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

_pack_beat = layout.BEAT.form.pack_into
_BEAT_START = layout.BEAT.start
_NOWHERE = bytearray(layout.PAGE_SIZE)


class BeatWriter:
    """Where `beat` writes to.

    Its ``beat`` may be taken before recording begins (``from lightning_hangcheck import beat``): it
    reads the present buffer at each call.

    Args:
        begin: Called by the first beat of all; it must `attach` a buffer.
    """

    __slots__ = ("_begin", "_buffer", "_stamp")

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin
        self._buffer: mmap.mmap | bytearray = _NOWHERE
        self._stamp = 1

    def attach(self, buffer: mmap.mmap | bytearray) -> None:
        """Beat on this page from now on, counting from 0."""
        self._stamp = 1
        self._buffer = buffer

    @property
    def count(self) -> int:
        """Beats on this page so far."""
        return self._stamp - 1

    def beat(self) -> None:
        """Say "I advanced". About 0.2 microseconds; any thread may call it."""
        if self._buffer is _NOWHERE:
            self._begin()
        # two threads at once may share a number: a beat too few, never a torn record
        self._stamp = stamp = self._stamp + 1
        _pack_beat(self._buffer, _BEAT_START, stamp, monotonic_ns(), stamp)
