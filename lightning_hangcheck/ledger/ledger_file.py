"""The ledger: an append-only file of phases and runs, and what its lines say together."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import (
    EVIDENCE_BYTES,
    make_private_folder,
    open_for_append,
    read_owned,
    write_atomically,
)
from lightning_hangcheck.ledger.spending import Stall
from lightning_hangcheck.machine import is_alive
from lightning_hangcheck.model.case import PhaseTime
from lightning_hangcheck.model.codec import encode, encode_pretty, json_decoder
from lightning_hangcheck.rundir import RUNS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Collection

LEDGER_FILE = "ledger.jsonl"
WHOLE_BYTES = 64 * 1024 * 1024
"""Up to this size a file is read whole: 0.1 s at a network disk's 0.5 GB/s."""
END_BYTES = (
    1024 * 1024
)  # Read at both ends of a larger file: formats keep headers and indices there
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
    # imports OpenSSL, which the watcher and phases without files do not need
    import hashlib

    if "://" in path:
        return Fingerprint(path=path, how="not looked at: it is remote")
    place = Path(path)
    try:
        place = place.absolute()
        found = place.stat()
        size = found.st_size
        if stat.S_ISDIR(found.st_mode):
            lines: list[str] = []
            size = 0
            for inside, folders, names in os.walk(place, onerror=_refuse):
                folders.sort()
                for name in sorted(names)[: MOST_FILES - len(lines)]:
                    file = Path(inside, name).lstat()
                    lines.append(f"{inside}/{name}\0{file.st_size}\0{file.st_mtime_ns}\0")
                    size += file.st_size
                if len(lines) == MOST_FILES:
                    break
            content, first = os.fsencode("".join(lines)), "the first " * (len(lines) == MOST_FILES)
            how = f"names, sizes and times of {first}{len(lines):,} files"
        elif not stat.S_ISREG(found.st_mode):
            return Fingerprint(path=str(place), how="not looked at: neither a file nor a folder")
        elif size <= WHOLE_BYTES:
            content, how = place.read_bytes(), "its whole content"
        else:
            with place.open("rb") as opened:
                content = f"{size} {found.st_mtime_ns}".encode() + opened.read(END_BYTES)
                opened.seek(-END_BYTES, os.SEEK_END)
                content += opened.read(END_BYTES)
            how = "size, time, first and last MiB"
    except FileNotFoundError:
        return Fingerprint(path=str(place), how="it is not there")
    except (OSError, ValueError) as error:  # ValueError: no file system allows this name
        why = getattr(error, "strerror", None) or error
        return Fingerprint(path=str(place), how=f"not read: {why}")
    digest = hashlib.sha256(content).hexdigest()
    return Fingerprint(path=str(place), size=size, digest=digest, how=how)


def _refuse(error: OSError) -> None:
    raise error  # a folder inside that cannot be listed is not known to be unchanged


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


class Place(Struct, frozen=True, kw_only=True):
    """Where a phase ran.

    Attributes:
        started_ticks: With ``pid`` and ``host`` this identifies the process uniquely.
        commit: git's name of the commit; with ``-dirty`` if tracked files differ from it.
    """

    host: str = ""
    pid: int = 0
    started_ticks: int = 0
    ranks: int = 1
    gpus: tuple[str, ...] = ()
    commit: str = ""
    command: str = ""


Status = Literal["", "running", "done", "failed", "interrupted", "unknown"]


class PastPhase(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="phase"
):
    """A phase of a script. A line of the ledger holds the fields that changed, by its id.

    Attributes:
        at: When the newest line was written.
        ended: Whether its process recorded an end; ``error`` is what ended it, empty if it is done.
        status: From all this. ``interrupted``: the process is gone and recorded no end.
            ``unknown``: it recorded no end, and ran on another host.
        duration_s: None if unknown; without a recorded end, the least duration known.
        cpu_s: Processor time of its process and of the children that the process waited for.
        deciding: Name of the metric that rates the phase; empty for its only metric.
        ask_from: Before the phase's outputs are lost or become stale, a person is asked, unless the
            metric is below this; None to never ask.
        reused: How often its outputs were used in place of another run.
        discarded: Why its outputs no longer count; empty while they do.
        stale: Why its outputs exist, but were made from older inputs; empty if they were not.
    """

    id: str
    name: str = ""
    status: Status = ""
    at: str
    begun_at: str = ""
    place: Place = Place()
    duration_s: float | None = None
    cpu_s: float = 0.0
    deciding: str = ""
    ask_from: float | None = None
    metrics: dict[str, float] = {}
    ended: bool = False
    error: str = ""
    inputs: tuple[Fingerprint, ...] = ()
    outputs: tuple[Fingerprint, ...] = ()
    offloaded: tuple[str, ...] = ()
    reused: int = 0
    discarded: str = ""
    stale: str = ""

    @property
    def counts(self) -> bool:
        """Whether its outputs can be used."""
        return self.ended and not self.error and not self.discarded

    @property
    def metric(self) -> tuple[str, float] | None:
        """The metric that rates the phase; None if it was not recorded."""
        if not self.deciding:
            return next(iter(self.metrics.items())) if len(self.metrics) == 1 else None
        return next((item for item in self.metrics.items() if item[0] == self.deciding), None)

    @property
    def made(self) -> dict[str, str]:
        """Its outputs: the digest of each path."""
        return {file.path: file.digest for file in self.outputs}


class Run(Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """A watched run that has ended; written by the sidecar.

    Attributes:
        spent: Seconds by phase, summed over the ranks of the sidecar's node.
        offloaded: Parts of a model on the CPU or the disk, from the journals of the run's ranks.
    """

    schema_version: int = 1
    at: str
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


class History(Struct, frozen=True, kw_only=True):
    """All phases and runs of a ledger, oldest first. ``state.json`` holds the same."""

    schema_version: int = 1
    phases: tuple[PastPhase, ...] = ()
    runs: tuple[Run, ...] = ()
    unreadable: int = 0

    def last_done(self, name: str, outputs: Collection[str] | None = None) -> PastPhase | None:
        """Return the newest usable phase of this name, with exactly these outputs if named."""
        for phase in reversed(self.phases):
            same = outputs is None or set(outputs) == set(phase.made)
            if phase.name == name and phase.counts and same:
                return phase
        return None

    def resting_on(self, phase: PastPhase) -> tuple[PastPhase, ...]:
        """Return phases made from this phase's outputs, directly or not, that are not stale yet."""
        made, found = set(phase.made), [phase]
        for later in self.phases:
            # an input is an output, is inside an output folder, or contains an output
            pairs = ((file.path, path) for file in later.inputs for path in made)
            if (
                later.counts
                and later not in found
                and any(a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") for a, b in pairs)
            ):
                found.append(later)
                made |= set(later.made)
        return tuple(phase for phase in found[1:] if not phase.stale)


def find_ledger(named: str | None) -> Path:
    """Return the named ledger, or that of the working folder, without touching the disk."""
    ledger = Path(named or f"{RUNS_FOLDER}/{LEDGER_FILE}")
    with suppress(OSError):  # the working folder was removed
        ledger = ledger.absolute()
    return ledger


def append(ledger: Path, line: PastPhase | Run) -> None:
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


def read_any(ledger: Path) -> History:
    """Read a ledger that need not exist yet."""
    return read(ledger) if ledger.exists() else History()


def write_state(ledger: Path) -> None:
    """Rewrite ``state.json`` next to the ledger, for people; raises OSError like `append`."""
    write_atomically(ledger.with_name("state.json"), encode_pretty(read(ledger)))


def read(ledger: Path) -> History:
    """Read a whole ledger; unreadable lines are counted.

    Raises:
        UnreadableRun: The file does not exist, is not ours, or is no ledger.
    """
    try:
        lines = [line for line in read_owned(ledger, EVIDENCE_BYTES).splitlines() if line]
    except FileNotFoundError as error:
        raise UnreadableRun(
            f"there is no ledger {ledger}",
            "name one with --ledger, or begin one: hangcheck run, or hc.phase in a script",
        ) from error
    except OSError as error:
        raise UnreadableRun(
            f"{ledger} cannot be read ({error.strerror})", "name another file: --ledger"
        ) from error
    known: dict[str, dict[str, Any]] = {}
    runs: list[Run] = []
    unreadable = 0
    for data in lines:
        try:
            line = json_decoder(PastPhase | Run).decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            unreadable += 1
            continue
        if isinstance(line, Run):
            runs.append(line)
        else:
            known.setdefault(line.id, {}).update(msgspec.to_builtins(line))
    if lines and unreadable == len(lines):
        raise UnreadableRun(
            f"no line of {ledger} can be read", "name a ledger with --ledger, or a newer hangcheck"
        )
    phases = (msgspec.convert(fields, PastPhase) for fields in known.values() if "name" in fields)
    return History(
        phases=tuple(replace(phase, status=_status(phase)) for phase in phases),
        runs=tuple(runs),
        unreadable=unreadable,
    )


def _status(phase: PastPhase) -> Status:
    if phase.ended:
        return "failed" if phase.error else "done"
    if phase.place.host != os.uname().nodename:
        return "unknown"
    place = phase.place
    return "running" if is_alive(place.pid, place.started_ticks) else "interrupted"
