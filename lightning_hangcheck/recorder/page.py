"""The page: fixed bytes of shared memory per process, written by it and read by the sidecar.

A beat is two stores. The writer never waits; `page_reader` reads. Beats, phases and the pulse come
often and have their own records. All else is rewritten as one piece.
"""

from __future__ import annotations

import json
import os
import struct
import threading
from functools import lru_cache
from time import monotonic_ns

from lightning_hangcheck import files, log
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.text.shown import NANOSECONDS

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from typing import NamedTuple

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.model.beat import Ending
    from lightning_hangcheck.model.slugs import Phase
else:
    from lightning_hangcheck.plain import NamedTuple


MAGIC = b"HANGPAGE"
LAYOUT_VERSION = 12
PAGE_SIZE = 16_384
UNKNOWN = -1
_PHASE_INDEX = {None: UNKNOWN} | {phase: index for index, phase in enumerate(PHASES)}


class Record:
    """A place on the page and the format of its contents, in native byte order."""

    # Records start on cache lines (64 bytes); equal stamps at both ends hold words together.

    __slots__ = ("form", "start", "stop")

    def __init__(self, start: int, form: str) -> None:
        self.start = start
        self.form = struct.Struct(form)
        self.stop = start + self.form.size


# magic, layout version, page size, pid, monotonic time of creation, pid of the parent
HEADER = Record(0, "@8sIIqqq")
# monotonic time: one aligned store needs no stamps
PULSE = Record(64, "@q")
# count of beats, monotonic time: two aligned stores, each valid alone, need no stamps
BEAT = Record(128, "@Qq")
# monotonic time, phase, epoch, step, batch, count of `enter_phase`
PHASE = Record(192, "@QqqqqqqQ")
# count of timed steps, seconds of their three parts, as in `StepTimes`
STEPS = Record(256, "@QdddQ")
# all else (fields of `Beat`, in JSON): how often it was written, and its size in bytes. Two
# places are used in turn, so that a writer that dies leaves the previous version intact
REST = Record(320, "@Q")
PLACES = (384, 384 + (PAGE_SIZE - 384) // 2)
SIZES = 1 << 16
_encode_text = json.JSONEncoder(ensure_ascii=False).encode
_WORDS = {None: "null", True: "true", False: "false"}


@lru_cache(maxsize=128)  # step names repeat
def fit_text(text: str, width: int) -> str:
    """Cut a text between two characters so that it takes at most ``width`` bytes."""
    data = text.replace("\0", " ").encode(errors="replace")
    return data[:width].decode(errors="ignore")


class Call(NamedTuple):
    """One Python call, as `model.evidence.Frame`, which ranks do not import."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class ShownSection(NamedTuple):
    """A section as the page shows it; `model.beat.OpenSection` explains the fields."""

    name: str
    since_ns: int
    item: int | None = None
    goes_on_after_s: float | None = None
    in_main_thread: bool = True


_pack_phase, _PHASE_START = PHASE.form.pack_into, PHASE.start


class BeatWriter:
    """Where `beat` writes, read at each call: `beat` may be taken before recording begins."""

    __slots__ = ("_record", "count")

    def __init__(self, begin: Callable[[], object]) -> None:
        self.count = 0
        self._record: memoryview | _FirstBeat = _FirstBeat(self, begin)

    def attach(self, buffer: mmap.mmap | bytearray) -> None:
        """Beat on this page from now on, counting from 0."""
        self.count = 0
        # "L" is the native 64-bit type: a store is faster than with "q"
        self._record = memoryview(buffer)[BEAT.start : BEAT.stop].cast("L")

    def beat(self) -> None:
        """Say "I advanced". About 0.2 microseconds; any thread may call it."""
        # two threads at once may share a number: one beat too few, never a torn value
        record = self._record
        self.count = record[0] = self.count + 1
        record[1] = monotonic_ns()


class _FirstBeat:
    """Stands in for the record, so that no later beat has to ask whether recording began."""

    def __init__(self, writer: BeatWriter, begin: Callable[[], object]) -> None:
        self._writer, self._begin = writer, begin

    def __setitem__(self, word: int, value: int) -> None:
        if word == 0:
            self._begin()
            if self._writer._record is not self:  # noqa: SLF001 - one idea in two classes
                self._writer.beat()


class PageWriter:
    """One page. `BeatWriter` writes beats, this class all else; any thread may write.

    Attributes:
        buffer: Its bytes: shared memory, or private memory that nobody reads.
        phase: The phase that it shows.
        ending: The ending that it shows.
    """

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.phase: Phase | None = None
        self._epoch = self._step = self._batch = UNKNOWN
        self._entries = self._phase_stamp = self._stamp = self._saves = 0
        self._steps, self._parts_ns = 0, (0, 0, 0)
        self.ending: Ending = "running"
        self._shown: dict[str, str] = {}  # each field with its value, encoded
        # re-entrant: a signal handler may interrupt the thread that holds it
        self._lock = threading.RLock()
        header = (MAGIC, LAYOUT_VERSION, PAGE_SIZE, os.getpid(), monotonic_ns(), os.getppid())
        HEADER.form.pack_into(buffer, HEADER.start, *header)
        BEAT.form.pack_into(buffer, BEAT.start, 0, 0)
        self.show_phase(None)
        self.show(last_beat_ns=monotonic_ns())

    @classmethod
    def create(cls, path: Path) -> PageWriter:
        """Make the page of this process; its name appears only when the page is complete."""
        temporary = files.temporary_name(path)
        descriptor = os.open(temporary, os.O_RDWR | files.NEW_FILE, files.PRIVATE_FILE)
        try:
            writer = cls(files.reserve(descriptor, PAGE_SIZE))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return writer

    @classmethod
    def unseen(cls) -> PageWriter:
        """Return a page that nobody reads, for a process that does not record."""
        return cls(bytearray(PAGE_SIZE))

    @property
    def step(self) -> int | None:
        """The step that it shows."""
        return None if self._step == UNKNOWN else self._step

    def pulse(self) -> None:
        """Show that a Python thread of this process runs."""
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
        """Show which phase the rank is in; counts as progress. About 0.5 microseconds.

        None is a phase without a name. ``epoch``, ``step`` (of the optimizer) and ``batch`` keep
        their values if None. It also counts as a beat, unless the rank beats by itself. An invalid
        phase, or a number beyond 64 bits, is logged once and ignored.
        """
        if epoch is not None:
            self._epoch = epoch
        if step is not None:
            self._step = step
        if batch is not None:
            self._batch = batch
        try:
            self._entries += beats
            self.show_phase(phase)
        except (KeyError, TypeError, struct.error) as error:
            log.once("phase", f"enter_phase({phase!r}) was ignored: {error!r}")

    def show_phase(self, phase: Phase | None) -> None:
        """Show a phase that a section or checkpoint implies; it promises no further beats."""
        index = _PHASE_INDEX[phase]
        self.phase = phase
        self._phase_stamp = stamp = self._phase_stamp + 1
        _pack_phase(
            self.buffer,
            _PHASE_START,
            stamp,
            monotonic_ns(),
            index,
            self._epoch,
            self._step,
            self._batch,
            self._entries,
            stamp,
        )

    def identify(self, me: Identity) -> None:
        """Show which rank this is, in which round, and where its store is, as far as known."""
        names = ("rank", "world_size", "local_rank", "round", "store_port")
        self.show(**{name: getattr(me, name) for name in names})

    def mark_checkpoint(self, number: int, name: str, at_ns: int) -> None:
        """Show the last checkpoint passed; ``at_ns`` is nanoseconds since 1970."""
        # the reader converts the time: here that would take as long as all the rest
        mark = number, fit_text(name, 160), at_ns
        self.show(checkpoint=mark, last_beat_ns=monotonic_ns())

    def show_sections(self, sections: Sequence[ShownSection], *, advanced: bool = True) -> None:
        """Show the open sections, oldest first; only the newest that fit."""
        # A change in a thread other than the training thread is no progress of the rank.
        texts = ",".join(map(_text_of_section, sections[-8:]))
        encoded = {"sections": f'"sections":[{texts}]'}
        if advanced:
            encoded["last_beat_ns"] = f'"last_beat_ns":{monotonic_ns()}'
        self._write(encoded)

    def mark_save(self, at_ns: int) -> int | None:
        """Count a successful save of a checkpoint at the current step; return that step."""
        self._saves += 1
        self.mark_loaded(at_ns, self.step)
        return self.step

    def mark_loaded(self, at_ns: int, step: int | None) -> None:
        """Show the checkpoint that training resumes from as the last one; it is no save."""
        self.show(save=(self._saves, at_ns, step))

    def show_wait(self, signals: tuple[int, ...], calls: Sequence[Call], handling: str) -> None:
        """Show what only the process itself knows of its main thread's wait.

        ``signals`` are those whose Python handlers may end the wait. ``calls`` are those of the
        coroutine that the event loop runs, outermost first, as far as they fit. ``handling`` is the
        exception being handled, in one redacted line.
        """
        room, awaiting = 600, len(calls)  # bytes
        for frame in reversed(calls):
            room -= len(str(frame).encode(errors="replace"))
            if room < 0:
                break
            awaiting -= 1
        words = fit_text(handling, 200)
        state = {"handled_signals": signals, "awaiting": calls[awaiting:], "handling": words}
        if not _encoded(state).items() <= self._shown.items():
            self.show(**state)

    def time_step(self, loader_ns: int, forward_ns: int, rest_ns: int) -> None:
        """Add one step to the sums of its parts, as in `StepTimes`; in about a microsecond."""
        loader, forward, rest = self._parts_ns
        self._parts_ns = loader, forward, rest = (
            loader + loader_ns,
            forward + forward_ns,
            rest + rest_ns,
        )
        self._steps = steps = self._steps + 1
        STEPS.form.pack_into(
            self.buffer,
            STEPS.start,
            steps,
            loader / NANOSECONDS,
            forward / NANOSECONDS,
            rest / NANOSECONDS,
            steps,
        )

    def end(self, ending: Ending, last_words: str = "") -> None:
        """Show how the process ended."""
        words = fit_text(last_words, 1208)  # 300 characters of up to 4 bytes each
        self.ending = ending
        self.show(ending=ending, ended_ns=monotonic_ns(), last_words=words)

    def show(self, **changed: object) -> None:
        """Show other values of these fields of `Beat`."""
        self._write(_encoded(changed))

    def _write(self, encoded: Mapping[str, str]) -> None:
        with self._lock:
            self._shown |= encoded
            self._stamp = stamp = self._stamp + 1
            text, place = f"{{{','.join(self._shown.values())}}}", PLACES[stamp % 2]
            data = text.encode(errors="replace")
            self.buffer[place : place + len(data)] = data
            REST.form.pack_into(self.buffer, REST.start, stamp * SIZES + len(data))
            if self._stamp != stamp:  # a signal handler wrote meanwhile
                self._write({})


def _encoded(fields: Mapping[str, object]) -> dict[str, str]:
    """Encode each field alone, so that a change encodes only what has changed."""
    return {name: f'"{name}":{_encode(value)}' for name, value in fields.items()}


def _encode(value: object) -> str:
    """Encode as JSON; for small values in a third of the time that `json` takes for a list."""
    kind = type(value)
    if kind is int or kind is float:
        return repr(value)
    if isinstance(value, str):
        return _encode_text(value)
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_encode, value))}]"
    return _WORDS[value]  # type: ignore[index] # anything else is an error of ours


@lru_cache(maxsize=64)  # it stays the same while others begin and end
def _text_of_section(section: ShownSection) -> str:
    return _encode(section._replace(name=fit_text(section.name, 88)))
