"""Reads the page of another process: whole, or not at all and why."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lightning_hangcheck.files.owned_file import open_owned
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection, SaveMark
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.naming.slugs import PHASES
from lightning_hangcheck.model.step_times import StepTimes
from lightning_hangcheck.recorder.page import layout as layout
from lightning_hangcheck.recorder.page.layout import Record, read_text
from lightning_hangcheck.text.moments import NANOSECONDS, moment_of, utc

if TYPE_CHECKING:
    from pathlib import Path

ATTEMPTS = 8
Name = TypeVar("Name", bound=str)


class Memory(Protocol):
    """Bytes that another process may change between two slices."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Copy a part."""


class PageReader:
    """One page; opened by the first `read` that finds it.

    Args:
        path: ``<session>/pages/<pid>.page``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._page: _OpenPage | None = None

    def read(self) -> Beat | Gap:
        """Read the page, about 25 microseconds. Never raises, never waits for the writer."""
        try:
            if self._page is None:
                self._page = _OpenPage(self._path)
            return read_page(self._page)
        except PageUnreadable as problem:
            return self._gap(str(problem))
        except OSError as error:
            return self._gap(f"{self._path} cannot be read ({error.strerror})")

    def close(self) -> None:
        """Close the page; a later `read` opens it again."""
        if self._page is not None:
            self._page.close()
            self._page = None

    def _gap(self, why: str) -> Gap:
        return Gap(f"page of pid {self._path.stem}", None, why, "page")


class PageUnreadable(Exception):
    """These bytes are no page, or no consistent one, at this moment."""


class _OpenPage:
    """A page's file. It is read and not mapped: a mapped one that somebody cuts ends the reader."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = open_owned(path)

    def __getitem__(self, part: slice, /) -> bytes:
        data = os.pread(self._descriptor, part.stop - part.start, part.start)
        if len(data) < part.stop - part.start:
            size = os.fstat(self._descriptor).st_size
            raise PageUnreadable(f"{self._path} has {size} bytes; a page has {layout.PAGE_SIZE}")
        return data

    def close(self) -> None:
        os.close(self._descriptor)


def read_page(memory: Memory) -> Beat:
    """Read each record of a page.

    Raises:
        PageUnreadable: It is no page, is of another layout, or a record is torn.
    """
    pid, created_ns, parent_pid = _read_header(memory)
    stamp, beat_ns = _read_record(memory, layout.BEAT)
    phase_ns, phase, epoch, step, batch, entries = _read_record(memory, layout.PHASE)[1:]
    rank, world_size, local_rank, round_number, port = _read_record(memory, layout.IDENTITY)[1:]
    checkpoint_ns, number, at_ns, name = _read_record(memory, layout.CHECKPOINT)[1:]
    sections_ns, count, *slots = _read_record(memory, layout.SECTIONS)[1:]
    ending, ended_ns, last_words = _read_record(memory, layout.ENDING)[1:]
    saves, saved_ns, saved_step = _read_record(memory, layout.SAVE)[1:]
    (membership,) = _read_record(memory, layout.MEMBERSHIP)[1:]
    (training,) = _read_record(memory, layout.TRAINING)[1:]
    (announced,) = _read_record(memory, layout.ANNOUNCED)[1:]
    timed, *parts_ns = _read_record(memory, layout.STEP_TIMES)[1:]
    (pulse_ns,) = layout.PULSE.form.unpack(memory[layout.PULSE.start : layout.PULSE.stop])
    return Beat(
        pid=pid,
        rank=_known(rank),
        world_size=_known(world_size),
        local_rank=_known(local_rank),
        round=_known(round_number),
        store_port=_known(port),
        beats=stamp - 1 + entries,
        last_beat_ns=max(created_ns, beat_ns, phase_ns, checkpoint_ns, sections_ns),
        # a phase that a newer version added has no name here
        phase=PHASES[phase] if 0 <= phase < len(PHASES) else None,
        phase_since_ns=phase_ns,
        epoch=_known(epoch),
        step=_known(step),
        batch=_known(batch),
        checkpoint=_checkpoint(number, at_ns, name),
        sections=_sections(count, slots),
        save=SaveMark(saves, _clock(saved_ns), _known(saved_step)) if saved_ns else None,
        pulse_ns=pulse_ns,
        ending=_named(layout.ENDINGS, ending, "ending"),
        ended_ns=ended_ns,
        last_words=read_text(last_words),
        training=_named(layout.TRAININGS, training, "training"),
        parent_pid=parent_pid,
        announced=_known(announced),
        membership=_named(layout.MEMBERSHIPS, membership, "membership"),
        step_times=StepTimes(timed, *(part / NANOSECONDS for part in parts_ns)) if timed else None,
    )


def _read_header(memory: Memory) -> tuple[int, int, int]:
    data = memory[layout.HEADER.start : layout.HEADER.stop]
    magic, version, _size, pid, created_ns, parent_pid = layout.HEADER.form.unpack(data)
    if magic != layout.MAGIC:
        raise PageUnreadable("it is no page of lightning-hangcheck")
    if version != layout.LAYOUT_VERSION:
        raise PageUnreadable(
            f"its layout is version {version}, this version reads {layout.LAYOUT_VERSION}; "
            "install the same lightning-hangcheck for the job and for its sidecar"
        )
    return pid, created_ns, parent_pid


def _read_record(memory: Memory, record: Record) -> tuple[Any, ...]:
    """Copy until two copies agree and the stamps too; return the fields without the last stamp."""
    for _ in range(ATTEMPTS):
        copy = memory[record.start : record.stop]
        if copy[:8] == copy[-8:] and any(copy[:8]) and copy == memory[record.start : record.stop]:
            return record.form.unpack(copy)[:-1]
    raise PageUnreadable(
        f"torn: a record was half written in each of {ATTEMPTS} readings; its writer was stopped "
        "or killed there, or writes without pause"
    )


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _named(names: tuple[Name, ...], index: int, what: str) -> Name:
    if not 0 <= index < len(names):
        raise PageUnreadable(f"its {what} has number {index}, which no version writes")
    return names[index]


def _checkpoint(number: int, at_ns: int, name: bytes) -> CheckpointMark | None:
    if not at_ns:
        return None
    return CheckpointMark(number, read_text(name), _clock(at_ns))


def _clock(ns: int) -> str:
    return utc(moment_of(ns), "microseconds")


def _sections(count: int, slots: list[Any]) -> tuple[OpenSection, ...]:
    shown = max(0, min(count, layout.SECTION_SLOTS))
    width = len(slots) // layout.SECTION_SLOTS
    starts = range(0, width * shown, width)
    return tuple(_section(*slots[start : start + width]) for start in starts)


def _section(since_ns: int, item: int, limit_ms: int, in_main: int, name: bytes) -> OpenSection:
    return OpenSection(
        read_text(name),
        since_ns,
        _known(item),
        None if limit_ms < 0 else limit_ms / 1000,
        bool(in_main),
    )
