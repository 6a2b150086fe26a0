"""Reads pages, in the sidecar and in `attach`: a reader accepts only consistent records."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from lightning_hangcheck import files
from lightning_hangcheck.model.beat import Beat, CheckpointMark, StepTimes
from lightning_hangcheck.model.codec import json_decoder
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.recorder.page import (
    BEAT,
    CHECKPOINT,
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
from lightning_hangcheck.text.shown import NANOSECONDS, clock_text

if TYPE_CHECKING:
    from pathlib import Path

ATTEMPTS = 8
TORN = (
    f"torn: a record was half written in each of {ATTEMPTS} readings; its writer was stopped or "
    "killed there, or writes without pause"
)


class PageUnreadable(Exception):
    """These bytes are no page, or not a consistent page at this moment."""


class Memory(Protocol):
    """Bytes that another process may change between two slices."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Copy a part."""


class PageReader:
    """One page, opened by the first `read` that finds it; not mapped: truncation would kill us."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._known: dict[bytes, Beat] = {}

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


def read_page(memory: Memory, known: dict[bytes, Beat] | None = None) -> Beat:
    """Read each record of a page; `PageUnreadable` if it is no page, or torn."""
    # ``known`` keeps what changes seldom, the checkpoint and the JSON, by the page's header and
    # their stamps: both are decoded again only if they were written since
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
        stamped = [slice(record.start, record.stop) for record in (STEPS, CHECKPOINT)]
        if all(front[at][:8] == front[at][-8:] and front[at] == before[at] for at in stamped):
            break
    else:
        raise PageUnreadable(TORN)
    beats, beat_ns = BEAT.form.unpack(front[BEAT.start : BEAT.stop])
    phase_ns, phase, *place, entries = PHASE.form.unpack(front[PHASE.start : PHASE.stop])
    _, steps, *parts_ns, _ = STEPS.form.unpack(front[STEPS.start : STEPS.stop])
    mark = front[CHECKPOINT.start : CHECKPOINT.stop]
    head = front[REST.start : REST.stop]
    known = {} if known is None else known
    key = bytes(header + head + mark[:8])
    if key not in known:
        rest = _read_rest(memory, head, mark)
        known.clear()
        known[key] = rest
    rest = known[key]
    epoch, step, batch = (None if number < 0 else number for number in place)
    (pulse_ns,) = PULSE.form.unpack(front[PULSE.start : PULSE.stop])
    return msgspec.structs.replace(
        rest,
        pid=pid,
        parent_pid=parent_pid,
        beats=beats + entries,
        last_beat_ns=max(created_ns, beat_ns, phase_ns, rest.last_beat_ns),
        # a phase that a newer version added has no name here
        phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
        epoch=epoch,
        step=step,
        batch=batch,
        pulse_ns=pulse_ns,
        step_times=StepTimes(steps, *(ns / NANOSECONDS for ns in parts_ns)) if steps else None,
    )


def _read_rest(memory: Memory, head: bytes, mark: bytes) -> Beat:
    """Read the JSON that ``head`` announces, and add the checkpoint that ``mark`` shows."""
    for _ in range(ATTEMPTS):
        stamp, size = divmod(REST.form.unpack(head)[0], SIZES)
        place = PLACES[stamp % 2]
        data = memory[place : min(place + size, PAGE_SIZE)]
        before, head = head, memory[REST.start : REST.stop]
        if stamp and before == head:
            break
    else:
        raise PageUnreadable(TORN)
    stamp, passed_ns, number, at_ns, name, _ = CHECKPOINT.form.unpack(mark)
    try:
        rest = json_decoder(Beat).decode(data)
        if not stamp:
            return rest
        checkpoint = CheckpointMark(number, name.rstrip(b"\0").decode(), clock_text(at_ns))
        last_beat_ns = max(rest.last_beat_ns, passed_ns)
        return msgspec.structs.replace(rest, checkpoint=checkpoint, last_beat_ns=last_beat_ns)
    # whatever bytes stand there
    except (ArithmeticError, OSError, RecursionError, ValueError) as error:
        raise PageUnreadable(f"what it shows is of no version that is known: {error}") from error
