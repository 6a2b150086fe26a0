"""Who holds a lock file: by the kernel's table on this machine, by what the file says elsewhere."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from lightning_hangcheck.identity import identify
from lightning_hangcheck.look.open_files import file_locks, holders_of
from lightning_hangcheck.look.proc import command_line, has_ended, read_environment, vitals
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.moments import utc_now
from lightning_hangcheck.text.plain_text import one_line
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown_command import show_command
from lightning_hangcheck.time_limit import NoAnswer, within

READ_LIMIT = 1.0  # seconds for one look into the file or the processes
LONGEST_COMMAND = 120  # characters
LONGEST_RECORD = 1024  # bytes
NOBODY = "nobody that is seen from here: a process on another host, or in another container"


class Record(Struct, frozen=True, kw_only=True):
    """What a holder writes into the lock file, a field a line.

    Process id and host come first, as in filelock's own soft locks.

    Attributes:
        machine: As `which_machine` has it: containers may share a host's name, and number their
            processes alike. Empty where somebody else wrote it.
    """

    pid: int
    host: str
    rank: str
    since: str
    command: str
    machine: str = ""

    def __str__(self) -> str:
        fields = (self.pid, self.host, self.rank, self.since, self.command, self.machine)
        return "".join(f"{field}\n" for field in fields)

    @property
    def who(self) -> str:
        """The holder in words."""
        rank = f"{self.rank}, " if self.rank else ""
        command = f", {self.command}" if self.command else ""
        return f"pid {self.pid} ({rank}host {self.host}{command})"

    @property
    def is_here(self) -> bool:
        """Whether its process id is one of those that are seen from here, as far as it says."""
        if self.machine and which_machine():
            return self.machine == which_machine()
        return self.host == socket.gethostname()


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a lock, in words.

    Attributes:
        pid: On this machine, None where it is on another or not known.
        gone: Its process has ended, by all that is seen.
    """

    words: str
    pid: int | None = None
    gone: bool = False


def own_record(rank: int | None) -> Record:
    """Describe this process."""
    return Record(
        pid=os.getpid(),
        host=socket.gethostname(),
        rank="" if rank is None else f"rank {rank}",
        since=utc_now("seconds"),
        command=_shown(sys.orig_argv),
        machine=which_machine(),
    )


def write_record(file: Path, record: Record | None) -> None:
    """Write who holds the lock, or that nobody does. A courtesy: where it fails, it is left out.

    A file that holds anything else is left alone: poetry.lock is no lock file.
    """
    with suppress(OSError):
        if file.stat().st_size and read_record(file) is None:
            return
        file.write_text("" if record is None else str(record), encoding="utf-8")


def read_record(file: Path) -> Record | None:
    """Read what the last holder wrote; None where there is nothing that can be read in time."""
    try:
        lines = within(READ_LIMIT, lambda: _read(file)).splitlines()
    except (NoAnswer, OSError):
        return None
    if len(lines) < 2 or not lines[0].isdecimal():
        return None
    host, rank, since, command, machine = (*lines[1:6], "", "", "", "")[:5]
    return Record(
        pid=int(lines[0]),
        host=host,
        rank=rank,
        since=since,
        command=one_line(redact_text(command)),
        machine=machine,
    )


def left_by(record: Record | None) -> str | None:
    """Name the holder that ended on this machine without giving its lock back, if one did."""
    if record is None or not (record.machine and record.is_here) or not has_ended(record.pid):
        return None
    return record.who


def find_holder(file: Path) -> Holder:
    """Find who holds a lock file now, within about three seconds. Never raises."""
    record = read_record(file)
    try:
        pids = holders_of(within(READ_LIMIT, file.stat), file_locks())
    except (NoAnswer, OSError):
        pids = ()
    if pids:
        wrote_it = record is not None and record.pid == pids[0] and record.is_here
        return _on_this_machine(file, record if record and wrote_it else _look_up(pids[0]))
    if record is None:
        return Holder(words=NOBODY)
    if not record.is_here:
        elsewhere = "host" if record.host != socket.gethostname() else "container"
        return Holder(words=f"{_with_time(record)}, which cannot be seen from this {elsewhere}")
    if not record.machine and has_ended(record.pid):
        unseen = "which has ended, or is of another container that has this host's name"
        return Holder(words=f"{_with_time(record)}, {unseen}")
    return _on_this_machine(file, record)


def _on_this_machine(file: Path, record: Record) -> Holder:
    words, signs = _with_time(record), vitals(record.pid)
    if record.pid == os.getpid():
        return Holder(words="this process itself", pid=record.pid)
    if has_ended(record.pid):
        heirs = _who_has_open(file)
        kept = f"; {', '.join(heirs)} has it open still" if heirs else ""
        return Holder(words=f"{words}, which has ended{kept}", pid=record.pid, gone=not heirs)
    stopped = ", which is stopped" if signs is not None and signs.state in "Tt" else ""
    return Holder(words=f"{words}{stopped}", pid=record.pid)


def _look_up(pid: int) -> Record:
    """Describe a holder that wrote nothing of itself, by its command line and environment."""
    words, environment = command_line(pid), read_environment(pid)
    rank = None if isinstance(environment, Gap) else identify(environment).rank
    return Record(
        pid=pid,
        host=socket.gethostname(),
        rank="" if rank is None else f"rank {rank}",
        since="",
        command="" if isinstance(words, Gap) else _shown(words),
    )


def _with_time(record: Record) -> str:
    return f"{record.who}{f', since {record.since}' if record.since else ''}"


def _who_has_open(file: Path) -> list[str]:
    """Processes that have the file open, as children inherit it; other users' are hidden."""
    try:
        return within(READ_LIMIT, lambda: _openers(file.resolve()))
    except (NoAnswer, OSError):
        return []


def _openers(file: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        pid = int(folder.parent.name)
        if pid == os.getpid():
            continue
        with suppress(OSError):
            if any(_is_link_to(descriptor, file) for descriptor in folder.iterdir()):
                found.append(f"pid {pid}")
    return found


def _is_link_to(descriptor: Path, file: Path) -> bool:
    try:
        return descriptor.readlink() == file
    except OSError:
        return False


def _read(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(LONGEST_RECORD).decode(errors="replace")


def _shown(words: list[str]) -> str:
    line = show_command(words)
    return line if len(line) <= LONGEST_COMMAND else f"{line[: LONGEST_COMMAND - 3]}..."
