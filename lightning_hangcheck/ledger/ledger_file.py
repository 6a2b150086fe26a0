"""The lines of a ledger, and the append-only file that holds them."""

from __future__ import annotations

import os
import stat
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import (
    EVIDENCE_BYTES,
    make_private_folder,
    open_for_append,
    read_owned,
    write_atomically,
)
from lightning_hangcheck.ledger.spending import Stall
from lightning_hangcheck.model.case import PhaseTime
from lightning_hangcheck.model.codec import encode, encode_pretty, json_decoder
from lightning_hangcheck.rundir import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WHOLE_BYTES = 64 * 1024 * 1024
"""Up to this size a file is read whole: 0.1 s at a network disk's 0.5 GB/s."""
END_BYTES = 1024 * 1024
MOST_FILES = 10_000  # Of a folder: about 1 s on a network disk.


class Fingerprint(Struct, frozen=True, kw_only=True):
    """State of a file or folder at one moment.

    Attributes:
        digest: Empty if it could not be computed.
        how: What the digest is based on, in words, or why there is none.
    """

    path: str
    size: int = 0
    digest: str = ""
    how: str


def fingerprint(path: str) -> Fingerprint:
    """Take the fingerprint of a file or folder. Reads the disk; never raises."""
    if "://" in path:
        return Fingerprint(path=path, how="not looked at: it is remote")
    place = Path(path)
    try:
        place = place.absolute()
        found = place.stat()
        if stat.S_ISDIR(found.st_mode):
            return _of_folder(place)
        if not stat.S_ISREG(found.st_mode):
            return Fingerprint(path=str(place), how="not looked at: neither a file nor a folder")
        return _of_file(place, found)
    except FileNotFoundError:
        return Fingerprint(path=str(place), how="it is not there")
    except (OSError, ValueError) as error:  # ValueError: no file system allows this name
        why = getattr(error, "strerror", None) or error
        return Fingerprint(path=str(place), how=f"not read: {why}")


def difference(before: Fingerprint, now: Fingerprint) -> str:
    """Say in words how a file has changed; empty if it has not."""
    name = before.path
    if not before.digest or not now.digest:
        return f"{name} cannot be compared ({now.how if not now.digest else before.how})"
    if before.digest == now.digest:
        return ""
    if before.size != now.size:
        return f"{name} has changed: {before.size:,} bytes then, {now.size:,} now"
    return f"{name} has changed (known by {now.how})"


def _of_file(path: Path, found: os.stat_result) -> Fingerprint:
    """Of a large file, read the first and last MiB, where formats keep headers and indices."""
    whole = found.st_size <= WHOLE_BYTES
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        pieces = [file.read(WHOLE_BYTES if whole else END_BYTES)]
        if not whole:
            file.seek(found.st_size - END_BYTES)
            stated = f"{found.st_size} {found.st_mtime_ns}".encode()
            pieces = [stated, *pieces, file.read(END_BYTES)]
    return Fingerprint(
        path=str(path),
        size=found.st_size,
        digest=_digest(pieces),
        how="its whole content" if whole else "size, time, first and last MiB",
    )


def _of_folder(folder: Path) -> Fingerprint:
    def every_file() -> Iterator[tuple[str, int, int]]:
        for inside, folders, names in os.walk(folder):
            folders.sort()
            for path in (Path(inside, name) for name in sorted(names)):
                found = path.lstat()
                yield str(path.relative_to(folder)), found.st_size, found.st_mtime_ns

    files = sorted(islice(every_file(), MOST_FILES + 1))
    pieces = (
        f"{name}\0{size}\0{modified_ns}\0".encode(errors="surrogateescape")
        for name, size, modified_ns in files[:MOST_FILES]
    )
    several = f"{MOST_FILES:,} of its files" if len(files) > MOST_FILES else f"{len(files):,} files"
    return Fingerprint(
        path=str(folder),
        size=sum(size for _, size, _ in files),
        digest=_digest(pieces),
        how=f"names, sizes and times of {several}",
    )


def _digest(pieces: Iterable[bytes]) -> str:
    # imports OpenSSL, which the watcher and phases without files do not need
    import hashlib

    return hashlib.sha256(b"".join(pieces)).hexdigest()


class Line(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Fields of every line.

    Attributes:
        id: Id of the phase or run; all lines of a phase share it.
    """

    schema_version: int = 1
    id: str
    at: str


class Place(Struct, frozen=True, kw_only=True):
    """Where a phase ran.

    Attributes:
        started_ticks: With ``pid`` and ``host`` this identifies the process uniquely.
        dirty: Whether files differ from the commit; None if unknown.
    """

    host: str
    pid: int
    started_ticks: int = 0
    ranks: int = 1
    gpus: tuple[str, ...] = ()
    commit: str = ""
    dirty: bool | None = None
    command: str = ""


class Begun(Line, frozen=True, kw_only=True, tag="begin"):
    """A phase begins.

    Attributes:
        deciding: Name of the metric that rates the phase; empty for its only metric.
        ask_from: Before the phase's outputs are lost or become stale, a person is asked, unless the
            metric is below this; None to never ask.
    """

    phase: str
    place: Place
    deciding: str = ""
    ask_from: float | None = None
    inputs: tuple[Fingerprint, ...] = ()


class Measured(Line, frozen=True, kw_only=True, tag="metric"):
    """Metrics of a running phase; all that is known of the phase if it is killed."""

    after_s: float
    metrics: dict[str, float]


class Ended(Line, frozen=True, kw_only=True, tag="end"):
    """A phase ended.

    Attributes:
        cpu_s: Processor time of its process and of the children that the process waited for.
    """

    duration_s: float
    cpu_s: float = 0.0
    error: str = ""
    metrics: dict[str, float] = {}
    outputs: tuple[Fingerprint, ...] = ()
    offloaded: tuple[str, ...] = ()


class Reused(Line, frozen=True, kw_only=True, tag="reuse"):
    """A phase was skipped and earlier outputs used; ``id`` is the phase that made them."""

    phase: str
    why: str


class Discarded(Line, frozen=True, kw_only=True, tag="discarded"):
    """The outputs of phase ``id``, or its inputs, were replaced."""

    phase: str
    by: str
    why: str


class Run(Line, frozen=True, kw_only=True, tag="run"):
    """A watched run ended; written by the sidecar.

    Attributes:
        spent: Seconds by phase, summed over the ranks of the sidecar's node.
        offloaded: As in `Ended`, from the journals of the run's ranks.
    """

    run_id: str
    command: str
    started_at: str
    duration_s: float
    ranks: int
    host: str = ""
    gpus: tuple[str, ...] = ()
    verdict: str = ""
    exit_code: int | None = None
    spent: tuple[PhaseTime, ...] = ()
    stalls: tuple[Stall, ...] = ()
    offloaded: tuple[str, ...] = ()


AnyLine = Begun | Measured | Ended | Reused | Discarded | Run


LEDGER_FILE = "ledger.jsonl"


class Pages(msgspec.Struct, frozen=True):
    """The content of a ledger."""

    lines: tuple[AnyLine, ...] = ()
    unreadable: int = 0


def find_ledger(named: str | None) -> Path:
    """Return the named ledger, or that of the working folder, without touching the disk."""
    return Path(named or f"{RUNS_FOLDER}/{LEDGER_FILE}").absolute()


def append(ledger: Path, line: AnyLine) -> None:
    """Append a line; an incomplete last line is kept on a line of its own.

    Raises:
        OSError: The disk is full or not writable, or the file is not ours.
    """
    if ledger.parent.name == RUNS_FOLDER:  # by its name, the folder is ours
        # the user may have linked the folder to a larger disk
        make_private_folder(Path(os.path.realpath(ledger.parent)))
    else:
        ledger.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = encode(line) + b"\n"
    descriptor = open_for_append(ledger)
    try:
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            data = b"\n" + data
        written = os.write(descriptor, data)
    finally:
        os.close(descriptor)
    if written < len(data):
        raise OSError(f"only {written} of {len(data)} bytes fitted")


def write_state(ledger: Path, state: msgspec.Struct) -> None:
    """Rewrite ``state.json`` next to the ledger, for people; raises OSError like `append`."""
    write_atomically(ledger.with_name("state.json"), encode_pretty(state))


def read(ledger: Path) -> Pages:
    """Read a whole ledger; unreadable lines are counted.

    Raises:
        UnreadableRun: The file does not exist, is not ours, or is no ledger.
    """
    try:
        data = read_owned(ledger, EVIDENCE_BYTES)
    except FileNotFoundError as error:
        raise UnreadableRun(
            f"there is no ledger {ledger}",
            "name one with --ledger, or begin one: hangcheck run, or hc.phase in a script",
        ) from error
    except OSError as error:
        raise UnreadableRun(
            f"{ledger} cannot be read ({error.strerror})", "name another file: --ledger"
        ) from error
    records: list[AnyLine] = []
    skipped = 0
    for line in filter(None, data.splitlines()):
        try:
            records.append(json_decoder(AnyLine).decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            skipped += 1
    if skipped and not records:
        raise UnreadableRun(
            f"no line of {ledger} can be read", "name a ledger with --ledger, or a newer hangcheck"
        )
    return Pages(tuple(records), skipped)
