"""The page: fixed bytes of shared memory per process, written by it and read by the sidecar.

The writer never waits; `page_reader` reads. Beats, phases, checkpoints and timed steps come often
and have records of their own. All else is one JSON object, rewritten when a part of it changes.
"""

from __future__ import annotations

import os
import struct
import threading
from functools import lru_cache
from json.encoder import encode_basestring
from math import isfinite
from time import monotonic_ns

from lightning_hangcheck import files
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.text.redaction import HIDDEN, is_secret, telling
from lightning_hangcheck.text.shown import clock_text

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from typing import NamedTuple

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.model.beat import Ending
    from lightning_hangcheck.model.slugs import Phase
else:
    from lightning_hangcheck.plain import NamedTuple


MAGIC = b"HANGPAGE"
LAYOUT_VERSION = 14
PAGE_SIZE = 16_384
UNKNOWN = -1
NAME_BYTES = 160
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
# count of beats, monotonic time: aligned stores, each valid alone, need no stamps
BEAT = Record(128, "@Qq")
# monotonic time, phase, epoch, step, batch, count of `enter_phase`: as above. In a training step,
# where the processor's caches are full of other code, `pack_into` takes 3 us, these stores take 1
PHASE = Record(192, "@qqqqqq")
# count of timed steps, nanoseconds of their three parts, as in `StepTimes`
STEPS = Record(256, "@QqqqqQ")
# monotonic time, number, nanoseconds since 1970, name
CHECKPOINT = Record(320, f"@Qqqq{NAME_BYTES}sQ")
# all else (fields of `Beat`, in JSON): how often it was written, and its size in bytes. Two
# places are used in turn, so that a writer that dies leaves the previous version intact
REST = Record(576, "@Q")
PLACES = (640, 640 + (PAGE_SIZE - 640) // 2)
SIZES = 1 << 16
_WORDS = {None: "null", True: "true", False: "false"}


def encode(value: object, quote: Callable[[str], str] = encode_basestring) -> str:
    """Encode as JSON, small values in a third of the time that `json` takes; ``quote`` a text.

    What JSON cannot hold becomes text or null. Secrets that a key shows are hidden.
    """
    kind = type(value)
    if kind is str:
        return quote(value)  # type: ignore[arg-type] # it is one
    if kind is int:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join([encode(inner, quote) for inner in value])}]"
    if isinstance(value, dict):
        pairs = []
        for key, inner in value.items():
            hidden = isinstance(inner, str) and is_secret(telling(str(key)), inner)
            pairs.append(f"{quote(str(key))}:{encode(HIDDEN if hidden else inner, quote)}")
        return f"{{{','.join(pairs)}}}"
    if value is None or isinstance(value, bool):
        return _WORDS[value]
    if isinstance(value, float):
        return float.__repr__(value) if isfinite(value) else "null"
    return int.__repr__(value) if isinstance(value, int) else quote(str(value))


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


class OpenedSection:
    """A section that is or was open; `model.beat.OpenSection` explains what the page shows of it.

    A ``spoken`` section is also on the console and in the journal. Only a section of the training
    thread sets the rank's phase, and restores the earlier phase at its end.
    """

    __slots__ = ("_head", "in_main_thread", "item", "name", "phase", "phase_before", "since_ns",
                 "spoken")  # fmt: skip

    def __init__(
        self,
        name: str,
        since_ns: int,
        item: int | None = None,
        goes_on_after_s: float | None = None,
        in_main_thread: bool = True,
        *,
        phase: Phase | None = None,
        spoken: bool = False,
    ) -> None:
        self.name, self.since_ns, self.item = name, since_ns, item
        self.in_main_thread, self.phase, self.spoken = in_main_thread, phase, spoken
        self.phase_before: Phase | None = None
        self._head = (  # it stays the same while others begin and end
            f'{{"name":{encode(fit_text(name, 88))},"since_ns":{since_ns},"in_main_thread":'
            f'{_WORDS[in_main_thread]},"goes_on_after_s":{encode(goes_on_after_s)},"item":'
        )

    @property
    def text(self) -> str:
        """Its JSON."""
        return f"{self._head}{encode(self.item)}}}"


class BeatWriter:
    """Where `beat` writes, read at each call: `beat` may be taken before recording begins."""

    __slots__ = ("_begin", "_record", "count")

    def __init__(self, begin: Callable[[], object]) -> None:
        self.count, self._begin = 0, begin
        # until it has a page: so no later beat has to ask whether recording began
        self._record: memoryview | BeatWriter = self

    def __setitem__(self, word: int, value: int) -> None:
        if word == 0:
            self._begin()
            if self._record is not self:
                self.beat()

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


class PageWriter:
    """One page. `BeatWriter` writes beats, this class all else; any thread may write.

    Attributes:
        buffer: Its bytes: shared memory, or private memory that nobody reads.
        phase: The phase that it shows.
        step: The step that it shows.
        ending: The ending that it shows.
        went_on: `go_on` was called since the last pulse.
    """

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.phase: Phase | None = None
        self.step: int | None = None
        self._stamp = self._saves = 0
        self._is_pulsed = False
        self.went_on = False
        self._parts = (0, 0, 0, 0)
        self.ending: Ending = "running"
        self._rest = {"pid": repr(os.getpid())}  # each field's JSON
        self._rest_stamp = 0
        # re-entrant: a signal handler may interrupt the thread that holds it
        self._lock = threading.RLock()
        header = (MAGIC, LAYOUT_VERSION, PAGE_SIZE, os.getpid(), monotonic_ns(), os.getppid())
        buffer[: REST.stop] = bytes(REST.stop)
        # "l" is the native 64-bit type: a store is faster than with "q"
        self._shown = memoryview(buffer)[PHASE.start : PHASE.stop].cast("l")
        self._shown[2] = self._shown[3] = self._shown[4] = UNKNOWN
        HEADER.form.pack_into(buffer, HEADER.start, *header)
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
    def is_shared(self) -> bool:
        """Whether others can read it."""
        return not isinstance(self.buffer, bytearray)

    def pulse(self) -> None:
        """Show that a Python thread of this process runs."""
        self._is_pulsed, self.went_on = True, False
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
        their values if None. It also counts as a beat, unless the rank beats by itself.
        """
        shown = self._shown
        if epoch is not None:
            shown[2] = epoch
        if step is not None:
            shown[3] = self.step = step
        if batch is not None:
            shown[4] = batch
        if beats:
            shown[5] += 1
        shown[1] = _PHASE_INDEX[phase]
        self.phase = phase
        shown[0] = monotonic_ns()

    def show_batch(self, now_ns: int, step: int, batch: int) -> None:
        """Show the next batch in the phase that is shown; counts as progress and as a beat."""
        shown = self._shown
        shown[3] = self.step = step
        shown[4] = batch
        shown[5] += 1
        shown[0] = now_ns

    def show_phase(self, phase: Phase | None) -> None:
        """Show a phase that a section or checkpoint implies; it promises no further beats."""
        self._shown[1] = _PHASE_INDEX[phase]
        self.phase = phase
        self._shown[0] = monotonic_ns()

    def go_on(self) -> None:
        """Show progress within the phase; once between two pulses is enough."""
        if not self.went_on:
            self.went_on = self._is_pulsed
            self._shown[0] = monotonic_ns()

    def time_step(self, loader_ns: int, forward_ns: int, rest_ns: int) -> None:
        """Add one step to the sums of its parts, as in `StepTimes`; in about a microsecond."""
        steps, loader, forward, rest = self._parts
        self._parts = steps + 1, loader + loader_ns, forward + forward_ns, rest + rest_ns
        self._stamp = stamp = self._stamp + 1
        STEPS.form.pack_into(self.buffer, STEPS.start, stamp, *self._parts, stamp)

    def mark_checkpoint(self, number: int, name: str, at_ns: int) -> None:
        """Show the last checkpoint passed; ``at_ns`` is nanoseconds since 1970."""
        words = fit_text(name, NAME_BYTES).encode()
        self._stamp = stamp = self._stamp + 1
        passed = stamp, monotonic_ns(), number, at_ns, words, stamp
        CHECKPOINT.form.pack_into(self.buffer, CHECKPOINT.start, *passed)

    def mark_save(self, at_ns: int) -> int | None:
        """Count a successful save of a checkpoint at the current step; return that step."""
        self._saves += 1
        self.mark_loaded(at_ns, self.step)
        return self.step

    def mark_loaded(self, at_ns: int, step: int | None) -> None:
        """Show the checkpoint that training resumes from as the last one; it is no save."""
        self.show(save={"number": self._saves, "at": clock_text(at_ns), "step": step})

    def identify(self, me: Identity) -> None:
        """Show which rank this is, in which round, and where its store is, as far as known."""
        names = ("rank", "world_size", "local_rank", "round", "store_port")
        self.show(**{name: getattr(me, name) for name in names})

    def show_sections(self, sections: Sequence[OpenedSection], *, advanced: bool = True) -> None:
        """Show the open sections, oldest first; only the newest that fit."""
        # A change in a thread other than the training thread is no progress of the rank.
        texts = [section.text for section in sections[-8:]]
        shown = {"sections": f"[{','.join(texts)}]"}
        if advanced:
            shown["last_beat_ns"] = repr(monotonic_ns())
        self._show(shown)

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
        self.show(
            handled_signals=signals,
            awaiting=[call._asdict() for call in calls[awaiting:]],
            handling=fit_text(handling, 200),
        )

    def end(self, ending: Ending, last_words: str = "") -> None:
        """Show how the process ended."""
        words = fit_text(last_words, 1208)  # 300 characters of up to 4 bytes each
        self.ending = ending
        self.show(ending=ending, ended_ns=monotonic_ns(), last_words=words)

    def end_thread(self, error: str) -> None:
        """Show which thread an exception has ended."""
        self.show(thread_error=fit_text(error, 600))

    def show(self, **changed: object) -> None:
        """Show other values of these fields of `Beat`."""
        self._show({name: encode(value) for name, value in changed.items()})

    def _show(self, changed: dict[str, str]) -> None:
        if changed.items() <= self._rest.items():
            return
        with self._lock:
            self._rest |= changed
            while True:
                self._rest_stamp = stamp = self._rest_stamp + 1
                fields = [f'"{name}":{text}' for name, text in self._rest.items()]
                data, place = f"{{{','.join(fields)}}}".encode(errors="replace"), PLACES[stamp % 2]
                self.buffer[place : place + len(data)] = data
                REST.form.pack_into(self.buffer, REST.start, stamp * SIZES + len(data))
                if self._rest_stamp == stamp:  # else a signal handler wrote meanwhile
                    break
