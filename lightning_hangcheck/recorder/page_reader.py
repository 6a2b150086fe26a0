"""Reads pages, in the sidecar and in `attach`: a reader accepts only consistent records."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

from lightning_hangcheck import files
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection, SaveMark, StepTimes
from lightning_hangcheck.model.evidence import Frame, Gap
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.recorder.page import (
    BEAT,
    HEADER,
    LAYOUT_VERSION,
    MAGIC,
    PAGE_SIZE,
    PHASE,
    PLACES,
    PULSE,
    REST,
    SIZES,
    STEPS,
)
from lightning_hangcheck.text.moments import moment_of, utc

if TYPE_CHECKING:
    from pathlib import Path

ATTEMPTS = 8
_MARKS: dict[str, type[msgspec.Struct]] = {"checkpoint": CheckpointMark, "save": SaveMark}
_LISTS: dict[str, type[msgspec.Struct]] = {"sections": OpenSection, "awaiting": Frame}
"""Fields that the page holds without the names of their parts."""


class Memory(Protocol):
    """Bytes that another process may change between two slices."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Copy a part."""


class PageReader:
    """One page, opened by the first `read` that finds it; not mapped: truncation would kill us."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._known: KnownRest = {}

    def read(self) -> Beat | Gap:
        """Read the page, in about 7 microseconds. Never raises, never waits for the writer."""
        try:
            if self._descriptor is None:
                self._descriptor = files.open_owned(self._path)
            return read_page(self, self._known)
        except PageUnreadable as problem:
            why = str(problem)
        except OSError as error:
            why = f"{self._path} cannot be read ({error.strerror})"
        return Gap(f"page of pid {self._path.stem}", None, why, "page")

    def close(self) -> None:
        """Close the page; a later `read` opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __getitem__(self, part: slice, /) -> bytes:
        descriptor = self._descriptor if self._descriptor is not None else -1
        data = os.pread(descriptor, part.stop - part.start, part.start)
        if len(data) < part.stop - part.start:
            size = os.fstat(descriptor).st_size
            raise PageUnreadable(f"{self._path} has {size} bytes; a page has {PAGE_SIZE}")
        return data


_TORN = (
    f"torn: a record was half written in each of {ATTEMPTS} readings; its writer was stopped or "
    "killed there, or writes without pause"
)


class PageUnreadable(Exception):
    """These bytes are no page, or not a consistent page at this moment."""


KnownRest: TypeAlias = dict[bytes, Beat]
"""All else as last read, by the page's header and how often it was written."""


def read_page(memory: Memory, known_rest: KnownRest | None = None) -> Beat:
    """Read each record of a page; `PageUnreadable` if it is no page, or torn."""
    # All else changes seldom: it is read again only if it was written since ``known_rest``.
    front = memory[0 : REST.stop]
    header = front[HEADER.start : HEADER.stop]
    magic, version, _, pid, created_ns, parent_pid = HEADER.form.unpack(header)
    if magic != MAGIC:
        raise PageUnreadable("it is no page of lightning-hangcheck")
    if version != LAYOUT_VERSION:
        raise PageUnreadable(
            f"its layout is version {version}, this version reads {LAYOUT_VERSION}; "
            "install the same lightning-hangcheck for the job and for its sidecar"
        )
    for _ in range(ATTEMPTS):
        before, front = front, memory[0 : REST.stop]
        shown, steps = front[PHASE.start : PHASE.stop], front[STEPS.start : STEPS.stop]
        same = all(
            now[:8] == now[-8:] and now == before[record.start : record.stop]
            for record, now in ((PHASE, shown), (STEPS, steps))
        )
        if same and any(shown[:8]):
            break
    else:
        raise PageUnreadable(_TORN)
    beats, beat_ns = BEAT.form.unpack(front[BEAT.start : BEAT.stop])
    _, phase_ns, phase, epoch, step, batch, entries, _ = PHASE.form.unpack(shown)
    count, *parts_s, _ = STEPS.form.unpack(steps)
    known_rest = {} if known_rest is None else known_rest
    head = front[REST.start : REST.stop]
    name = bytes(header + head)
    if name not in known_rest:
        rest = _read_rest(memory, head)
        known_rest.clear()
        known_rest[name] = rest
    known = known_rest[name]
    (pulse_ns,) = PULSE.form.unpack(front[PULSE.start : PULSE.stop])
    return msgspec.structs.replace(
        known,
        pid=pid,
        parent_pid=parent_pid,
        beats=beats + entries,
        last_beat_ns=max(created_ns, beat_ns, phase_ns, known.last_beat_ns),
        # a phase that a newer version added has no name here
        phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
        epoch=None if epoch < 0 else epoch,
        step=None if step < 0 else step,
        batch=None if batch < 0 else batch,
        pulse_ns=pulse_ns,
        step_times=StepTimes(count, *parts_s) if count else None,
    )


def _read_rest(memory: Memory, head: bytes) -> Beat:
    for _ in range(ATTEMPTS):
        stamp, size = divmod(REST.form.unpack(head)[0], SIZES)
        place = PLACES[stamp % 2]
        data = memory[place : min(place + size, PAGE_SIZE)]
        before, head = head, memory[REST.start : REST.stop]
        if stamp and before == head:
            break
    else:
        raise PageUnreadable(_TORN)
    try:
        fields = {"pid": 0} | json.loads(data)
        for name in _LISTS.keys() & fields.keys():
            fields[name] = [_named(_LISTS[name], values) for values in fields[name]]
        for name in _MARKS.keys() & fields.keys():
            mark = _named(_MARKS[name], fields[name])
            fields[name] = mark | {"at": utc(moment_of(mark["at"]), "microseconds")}
        return msgspec.convert(fields, Beat)
    # whatever bytes stand there
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise PageUnreadable(f"what it shows is of no version that is known: {error}") from error


def _named(kind: type[msgspec.Struct], values: list[Any]) -> dict[str, Any]:
    return dict(zip(kind.__struct_fields__, values, strict=True))
