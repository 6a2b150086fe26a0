"""The trace-event format, as far as we write it: what Perfetto and chrome://tracing open.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from lightning_hangcheck.text.moments import EPOCH
from lightning_hangcheck.text.plain_text import visible_json

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

MICROSECONDS = 1_000_000


class TraceEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event; what the format has no use for in its kind is left out.

    Attributes:
        ph: Its kind: ``X`` lasts ``dur``, ``i`` is a moment, ``M`` names a process or a thread, and
            an arrow leads from ``s`` to the ``f`` of the same ``id``.
        ts: Microseconds since 1970, as ``dur`` are microseconds.
        s: Of a moment how far its line goes: ``t`` its thread, ``p`` its process, ``g`` all.
        bp: ``e`` of an arrow's end: it leads to what lasts then, not to what begins next.
    """

    name: str
    ph: Literal["X", "i", "M", "s", "f"]
    pid: int
    tid: int
    ts: int | None = None
    dur: int | None = None
    cat: str = ""
    s: Literal["t", "p", "g", ""] = ""
    id: int | None = None
    bp: Literal["e", ""] = ""
    args: dict[str, str | int | float] = {}


class Trace(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A whole file."""

    trace_events: tuple[TraceEvent, ...]
    display_time_unit: Literal["ms"] = "ms"
    other_data: dict[str, str] = {}


def encode_trace(events: Iterable[TraceEvent], about: dict[str, str]) -> str:
    """Write a trace, names first and then by time; no sign in it is one that a terminal obeys."""
    ordered = sorted(events, key=lambda event: (event.ts or 0, -(event.dur or 0)))
    trace = Trace(trace_events=tuple(ordered), other_data=about)
    return visible_json(msgspec.json.encode(trace)).decode() + "\n"


def microseconds(moment: datetime) -> int:
    """Return a moment as the format counts: whole microseconds since 1970."""
    return _whole(moment - EPOCH)


def _whole(lasted: timedelta) -> int:
    return (lasted.days * 86_400 + lasted.seconds) * MICROSECONDS + lasted.microseconds
