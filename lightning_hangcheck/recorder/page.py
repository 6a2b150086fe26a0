"""The page: one fixed record of shared memory a process, written by it and read by the sidecar.

A beat is one store. The writer never waits; a reader takes only consistent records.
"""

from __future__ import annotations

import os
import struct
from functools import lru_cache
from struct import Struct
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, get_args

from lightning_hangcheck import log
from lightning_hangcheck.files.safe import NEW_FILE, PRIVATE_FILE, name_beside, open_owned, reserve
from lightning_hangcheck.identity import Identity
from lightning_hangcheck.model.beat import (
    Beat,
    CheckpointMark,
    Ending,
    Membership,
    OpenSection,
    SaveMark,
    StepTimes,
    Training,
)
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.model.slugs import PHASES, Phase
from lightning_hangcheck.text.shown import NANOSECONDS, moment_of, utc

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence
    from pathlib import Path


MAGIC: Final = b"HANGPAGE"
LAYOUT_VERSION: Final = 7
PAGE_SIZE: Final = 4096
UNKNOWN: Final = -1
SECTION_SLOTS: Final = 8
SECTION_NAME_BYTES: Final = 88
CHECKPOINT_NAME_BYTES: Final = 160
LAST_WORDS_BYTES: Final = 1208  # 300 characters of up to 4 bytes each
ENDINGS: Final[tuple[Ending, ...]] = get_args(Ending)
MEMBERSHIPS: Final[tuple[Membership, ...]] = get_args(Membership)
TRAININGS: Final[tuple[Training, ...]] = get_args(Training)

PHASE_INDEX: Final[dict[Phase | None, int]] = {None: UNKNOWN} | {
    phase: index for index, phase in enumerate(PHASES)
}


class Record:
    """A place on the page and the format of what stands there, in native byte order.

    Attributes:
        start: Offset on the page; records start on cache lines of 64 bytes.
        form: Its fields, the stamps among them.
    """

    __slots__ = ("form", "start", "stop")

    def __init__(self, start: int, form: str) -> None:
        self.start = start
        self.form = Struct(form)
        self.stop = start + self.form.size


# magic, layout version, page size, pid, monotonic time of creation, pid of the parent
HEADER: Final = Record(0, "@8sIIqqq")
# monotonic time: one aligned store needs no stamps
PULSE: Final = Record(64, "@q")
# stamp = count of beats, monotonic time
BEAT: Final = Record(128, "@QqQ")
# monotonic time, phase, epoch, step, batch, count of `enter_phase`
PHASE: Final = Record(192, "@QqqqqqqQ")
# rank, world size, local rank, round, port of the ranks' store
IDENTITY: Final = Record(256, "@QqqqqqQ")
# monotonic time, number, nanoseconds since 1970, name
CHECKPOINT: Final = Record(320, f"@Qqqq{CHECKPOINT_NAME_BYTES}sQ")
# monotonic time, how many are open, then for each shown one: monotonic time of entry, item,
# milliseconds after which a guard ends it, whether the main thread is in it, name
SECTIONS: Final = Record(576, "@Qqq" + f"qqqq{SECTION_NAME_BYTES}s" * SECTION_SLOTS + "Q")
# ending, monotonic time of it, last words
ENDING: Final = Record(1600, f"@Qqq{LAST_WORDS_BYTES}sQ")
# how many saves of a checkpoint ended well; of the last, or of one that was loaded since,
# nanoseconds since 1970, step
SAVE: Final = Record(2880, "@QqqqQ")
# whether the rank is in a process group
MEMBERSHIP: Final = Record(2944, "@QqQ")
# which of the ranks that its parent starts it is to be
ANNOUNCED: Final = Record(3008, "@QqQ")
# sums over the steps that were timed: how many, nanoseconds of loader, forward, and the rest
STEP_TIMES: Final = Record(3072, "@QqqqqQ")
# in which thread the process trains, or whether that is over
TRAINING: Final = Record(3136, "@QqQ")


@lru_cache(maxsize=128)  # a step's name is written again and again
def fit_text(text: str, width: int) -> bytes:
    """Encode a text so that it fits, cut between two characters; struct pads it with zeros."""
    data = text.replace("\0", " ").encode(errors="replace")
    return data if len(data) <= width else data[:width].decode(errors="ignore").encode()


def read_text(data: bytes) -> str:
    """Decode what `fit_text` encoded."""
    return data.rstrip(b"\0").decode(errors="replace")


_pack_beat = BEAT.form.pack_into
_BEAT_START = BEAT.start
_NOWHERE = bytearray(PAGE_SIZE)


class BeatWriter:
    """Where `beat` writes to.

    Its ``beat`` may be taken before recording begins (``from lightning_hangcheck import beat``): it
    reads the present buffer at each call.
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


_pack_phase = PHASE.form.pack_into
_PHASE_START = PHASE.start
_EMPTY_SLOT = (0, UNKNOWN, UNKNOWN, 0, b"")


class PageWriter:
    """One page. A beat is written by `BeatWriter`, everything else here.

    Two threads may write different records at once; callers take turns at one record.

    Attributes:
        buffer: Its bytes: shared memory, or private ones that nobody reads.
        phase: The phase that it shows.
        ending: The ending that it shows.
    """

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.phase: Phase | None = None
        self.ending: Ending = "running"
        self._phase_index = UNKNOWN
        self._epoch = self._step = self._batch = UNKNOWN
        self._entries = 0
        self._saves = 0
        self._sections_ns = 0
        self._phase_stamp = 0
        self._timed = [0, 0, 0, 0]
        self._stamps: dict[str, int] = {}
        self._write_first()

    @classmethod
    def create(cls, path: Path) -> PageWriter:
        """Make the page of this process; it appears under its name only when it is whole.

        Raises:
            OSError: Shared memory is full or not ours.
        """
        temporary = name_beside(path)
        descriptor = os.open(temporary, os.O_RDWR | NEW_FILE, PRIVATE_FILE)
        try:
            writer = cls(reserve(descriptor, PAGE_SIZE))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return writer

    @classmethod
    def unseen(cls) -> PageWriter:
        """A page that nobody reads, for a process that does not record."""
        return cls(bytearray(PAGE_SIZE))

    @property
    def step(self) -> int | None:
        """The step that it shows."""
        return None if self._step == UNKNOWN else self._step

    def pulse(self) -> None:
        """Say that a Python thread of this process runs."""
        PULSE.form.pack_into(self.buffer, PULSE.start, monotonic_ns())

    def enter_phase(
        self,
        phase: Phase | None,
        epoch: int | None = None,
        step: int | None = None,
        batch: int | None = None,
        *,
        beats: bool = True,
    ) -> None:
        """Show where in its life the rank is; counts as progress. About 0.5 microseconds.

        What is no phase or no number of 64 bits is said once and ignored.

        Args:
            phase: None for none that has a name.
            epoch: None keeps the one shown; so do the others.
            step: Optimizer steps so far.
            batch: Index in the epoch.
            beats: Counts as a beat too; not where the rank says those itself.
        """
        if epoch is not None:
            self._epoch = epoch
        if step is not None:
            self._step = step
        if batch is not None:
            self._batch = batch
        try:
            self._phase_index = PHASE_INDEX[phase]
            self.phase = phase
            self._entries += beats
            self._write_phase()
        except (KeyError, TypeError, struct.error) as error:
            log.once("phase", f"enter_phase({phase!r}) was ignored: {error!r}")

    def show_phase(self, phase: Phase | None) -> None:
        """Show a phase that a section or checkpoint implies; it promises no further beats."""
        self._phase_index = PHASE_INDEX[phase]
        self.phase = phase
        self._write_phase()

    def identify(self, me: Identity) -> None:
        """Say which rank this is, in which round, and where its store is, as far as known."""
        told = (me.rank, me.world_size, me.local_rank, me.round, me.store_port)
        numbers = (UNKNOWN if number is None else number for number in told)
        self._write("identity", IDENTITY, *numbers)

    def announce(self, number: int | None) -> None:
        """Show which of the ranks that its parent starts this process is to be, if it was told."""
        self._write("announced", ANNOUNCED, UNKNOWN if number is None else number)

    def mark_checkpoint(self, number: int, name: str, at_ns: int) -> None:
        """Show the last checkpoint passed; ``at_ns`` is nanoseconds since 1970."""
        text = fit_text(name, CHECKPOINT_NAME_BYTES)
        self._write("checkpoint", CHECKPOINT, monotonic_ns(), number, at_ns, text)

    def show_sections(self, sections: Sequence[OpenSection], *, advanced: bool = True) -> None:
        """Show the open sections, oldest first; of more than fit, the newest.

        Args:
            sections: All that are open.
            advanced: What changed shows that the rank gets on: a thread beside the one that trains
                may save or log for ever while that one is stuck.
        """
        if advanced:
            self._sections_ns = monotonic_ns()
        slots: list[int | bytes] = []
        for section in sections[-SECTION_SLOTS:]:
            item = UNKNOWN if section.item is None else section.item
            limit_s = section.goes_on_after_s
            limit_ms = UNKNOWN if limit_s is None else round(limit_s * 1000)
            name = fit_text(section.name, SECTION_NAME_BYTES)
            slots += (section.since_ns, item, limit_ms, section.in_main_thread, name)
        slots += _EMPTY_SLOT * (SECTION_SLOTS - len(slots) // len(_EMPTY_SLOT))
        self._write("sections", SECTIONS, self._sections_ns, len(sections), *slots)

    def mark_save(self, at_ns: int) -> int | None:
        """Count a save of a checkpoint that ended well, now and at the step shown.

        Returns:
            That step, None where none is shown.
        """
        self._saves += 1
        self._write("save", SAVE, self._saves, at_ns, self._step)
        return self.step

    def mark_loaded(self, at_ns: int, step: int | None) -> None:
        """Show a checkpoint that training goes on from as the last one; it is no save."""
        self._write("save", SAVE, self._saves, at_ns, UNKNOWN if step is None else step)

    def show_membership(self, membership: Membership) -> None:
        """Show whether the rank is in a process group."""
        self._write("membership", MEMBERSHIP, MEMBERSHIPS.index(membership))

    def show_training(self, training: Training) -> None:
        """Show in which thread the process trains, or that this is over."""
        self._write("training", TRAINING, TRAININGS.index(training))

    def time_step(self, loader_ns: int, forward_ns: int, rest_ns: int) -> None:
        """Add one step to the sums of their parts, as in `StepTimes`."""
        parts = zip(self._timed, (1, loader_ns, forward_ns, rest_ns), strict=True)
        self._timed = [before + more for before, more in parts]
        self._write("step_times", STEP_TIMES, *self._timed)

    def end(self, ending: Ending, last_words: str = "") -> None:
        """Show how the process ended."""
        self.ending = ending
        text = fit_text(last_words, LAST_WORDS_BYTES)
        self._write("ending", ENDING, ENDINGS.index(ending), monotonic_ns(), text)

    def _write_first(self) -> None:
        header = (MAGIC, LAYOUT_VERSION, PAGE_SIZE, os.getpid())
        HEADER.form.pack_into(self.buffer, 0, *header, monotonic_ns(), os.getppid())
        BEAT.form.pack_into(self.buffer, BEAT.start, 1, 0, 1)
        self.identify(Identity())
        self.announce(None)
        self.show_phase(None)
        self._write("checkpoint", CHECKPOINT, 0, UNKNOWN, 0, b"")
        self.show_sections(())
        self._write("save", SAVE, 0, 0, UNKNOWN)
        self.show_membership("none")
        self.show_training("main")
        self._write("step_times", STEP_TIMES, *self._timed)
        self.end("running")

    def _write_phase(self) -> None:
        self._phase_stamp = stamp = self._phase_stamp + 1
        _pack_phase(
            self.buffer,
            _PHASE_START,
            stamp,
            monotonic_ns(),
            self._phase_index,
            self._epoch,
            self._step,
            self._batch,
            self._entries,
            stamp,
        )

    def _write(self, name: str, record: Record, *fields: int | bytes) -> None:
        self._stamps[name] = stamp = self._stamps.get(name, 0) + 1
        record.form.pack_into(self.buffer, record.start, stamp, *fields, stamp)


ATTEMPTS = 8
Name = TypeVar("Name", bound=str)


class Memory(Protocol):
    """Bytes that another process may change between two slices."""

    def __getitem__(self, part: slice, /) -> bytes:
        """Copy a part."""


class PageReader:
    """One page; opened by the first `read` that finds it.

    It is read and not mapped: a mapped file that somebody cuts ends the reader.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def read(self) -> Beat | Gap:
        """Read the page, about 25 microseconds. Never raises, never waits for the writer."""
        try:
            if self._descriptor is None:
                self._descriptor = open_owned(self._path)
            return read_page(self)
        except PageUnreadable as problem:
            return self._gap(str(problem))
        except OSError as error:
            return self._gap(f"{self._path} cannot be read ({error.strerror})")

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

    def _gap(self, why: str) -> Gap:
        return Gap(f"page of pid {self._path.stem}", None, why, "page")


class PageUnreadable(Exception):
    """These bytes are no page, or no consistent one, at this moment."""


def read_page(memory: Memory) -> Beat:
    """Read each record of a page.

    Raises:
        PageUnreadable: It is no page, is of another layout, or a record is torn.
    """
    header = HEADER.form.unpack(memory[HEADER.start : HEADER.stop])
    magic, version, _size, pid, created_ns, parent_pid = header
    if magic != MAGIC:
        raise PageUnreadable("it is no page of lightning-hangcheck")
    if version != LAYOUT_VERSION:
        raise PageUnreadable(
            f"its layout is version {version}, this version reads {LAYOUT_VERSION}; "
            "install the same lightning-hangcheck for the job and for its sidecar"
        )
    stamp, beat_ns = _read_record(memory, BEAT)
    phase_ns, phase, epoch, step, batch, entries = _read_record(memory, PHASE)[1:]
    rank, world_size, local_rank, round_number, port = _read_record(memory, IDENTITY)[1:]
    checkpoint_ns, number, at_ns, name = _read_record(memory, CHECKPOINT)[1:]
    sections_ns, count, *slots = _read_record(memory, SECTIONS)[1:]
    ending, ended_ns, last_words = _read_record(memory, ENDING)[1:]
    saves, saved_ns, saved_step = _read_record(memory, SAVE)[1:]
    (membership,) = _read_record(memory, MEMBERSHIP)[1:]
    (training,) = _read_record(memory, TRAINING)[1:]
    (announced,) = _read_record(memory, ANNOUNCED)[1:]
    timed, *parts_ns = _read_record(memory, STEP_TIMES)[1:]
    (pulse_ns,) = PULSE.form.unpack(memory[PULSE.start : PULSE.stop])
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
        checkpoint=CheckpointMark(number, read_text(name), _clock(at_ns)) if at_ns else None,
        sections=_sections(count, slots),
        save=SaveMark(saves, _clock(saved_ns), _known(saved_step)) if saved_ns else None,
        pulse_ns=pulse_ns,
        ending=_named(ENDINGS, ending, "ending"),
        ended_ns=ended_ns,
        last_words=read_text(last_words),
        training=_named(TRAININGS, training, "training"),
        parent_pid=parent_pid,
        announced=_known(announced),
        membership=_named(MEMBERSHIPS, membership, "membership"),
        step_times=StepTimes(timed, *(part / NANOSECONDS for part in parts_ns)) if timed else None,
    )


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


def _clock(ns: int) -> str:
    return utc(moment_of(ns), "microseconds")


def _sections(count: int, slots: list[Any]) -> tuple[OpenSection, ...]:
    width = len(slots) // SECTION_SLOTS
    shown = width * max(0, min(count, SECTION_SLOTS))
    found = []
    for at in range(0, shown, width):
        since_ns, item, limit_ms, in_main, name = slots[at : at + width]
        limit_s = None if limit_ms < 0 else limit_ms / 1000
        found.append(OpenSection(read_text(name), since_ns, _known(item), limit_s, bool(in_main)))
    return tuple(found)
