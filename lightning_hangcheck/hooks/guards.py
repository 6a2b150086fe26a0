"""Guards that a user puts around work that one rank does and others wait for.

Each guard has a time limit, and names the missing ranks, where they are, or who holds a lock. Only
guards may raise or wait; nothing else of this package may.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, LockHeld, MeetingFailed
from lightning_hangcheck.hooks.places import NOTICE_AFTER, check_limit, notice_after
from lightning_hangcheck.hooks.rendezvous import (
    Outcome,
    RendezvousPoint,
    find_peer_group,
    join_rendezvous,
)
from lightning_hangcheck.identity import identify
from lightning_hangcheck.look.open_files import file_locks, holders_of
from lightning_hangcheck.look.proc import command_line, has_ended, read_environment, vitals
from lightning_hangcheck.machine import which_machine
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import Section, current
from lightning_hangcheck.text.redaction import redact_text
from lightning_hangcheck.text.shown import one_line, show_command, utc_now
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks for a folder
SUFFIX = ".lock"
STORAGE_LIMIT = 10.0  # seconds for one look at the lock's folder; a network mount needs far less
READ_LIMIT = 1.0  # seconds for one look into the file or the processes
LONGEST_COMMAND = 120  # characters
LONGEST_RECORD = 1024  # bytes


def barrier(name: str, timeout: float | None = None, *, local: bool = False) -> None:
    """Wait until all ranks have reached this barrier, before or after torch knows the ranks.

    It makes no collective call: a missing rank leaves the process group usable. Under
    ``python train.py`` with ``Trainer(devices=2)`` the first process waits for nobody until
    Lightning has started the others, and then waits for all of them.

    Args:
        name: The same on all ranks; may be used any number of times.
        timeout: Seconds that a rank waits; HANGCHECK_MEETING_TIMEOUT by default, 60.
        local: Only the ranks of this node.

    Raises:
        MeetingFailed: On every rank that came, alike: who is missing, where, after how long.
    """
    check_limit("timeout", timeout)
    recorder = current()
    peers = find_peer_group(recorder, local=local)
    if peers is not None and peers.size is None and peers.peers_exist:
        log.once("barrier-size", "how many ranks this node has is unknown: barriers take in all")
        peers = find_peer_group(recorder)
    if peers is not None:
        join_rendezvous(name, timeout or recorder.settings.meeting_timeout, peers=peers)


@contextmanager
def rank_zero_first(
    name: str, timeout: float | None = None, *, local: bool = False
) -> Iterator[None]:
    """Run the body on rank 0 first, then on all other ranks at once.

    Under ``python train.py`` with ``Trainer(devices=2)`` the first process never waits; ranks that
    Lightning starts later find that it is done. A process without peers just runs the body. With
    ``local`` the first rank of each node goes first, for work on a disk of the node; the rest is as
    in `barrier`. If rank 0's body fails or is late, every rank raises the same `MeetingFailed`; a
    first process without peers raises its own error unchanged.
    """
    check_limit("timeout", timeout)
    recorder = current()
    peers = find_peer_group(recorder, local=local)
    if peers is None:
        yield
        return
    point = RendezvousPoint.next(peers, name, timeout or recorder.settings.meeting_timeout)
    if peers.index:
        point.arrive(b"")
        point.await_outcome("did not finish").unwrap()
        yield
        return
    started = time.monotonic()
    try:
        yield
    except BaseException as error:
        # also on Ctrl-C and sys.exit: the others must not wait for a rank that leaves
        after, what = time.monotonic() - started, describe_exception(error)
        failed = Outcome(
            failure=f"{peers.noun} 0 failed in {name!r} after {after:.1f} s: {what}",
            remedy=f"mend what {peers.noun} 0 met (its traceback names the line)",
        )
        outcome = point.decide(failed)
        if peers.peers_exist and isinstance(error, Exception):
            raise MeetingFailed(outcome.failure, outcome.remedy, outcome.details) from error
        raise
    point.decide(Outcome()).unwrap()


def make_directory(path: str | os.PathLike[str], timeout: float | None = None) -> Path:
    """Make a folder on rank 0, with its parents, and return once every rank sees it.

    ``timeout`` is in seconds, for making and again for seeing it; HANGCHECK_MEETING_TIMEOUT by
    default. Every rank raises the same `MeetingFailed`: which rank could not make or see it, on
    which host, why, and after how long; or which ranks did not come.
    """
    check_limit("timeout", timeout)
    recorder = current()
    folder, where = Path(path), f"{Path(path).absolute()} on host {socket.gethostname()}"
    limit = timeout or recorder.settings.meeting_timeout
    peers = find_peer_group(recorder)
    first = peers is None or peers.index == 0

    def make() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        return ""

    def see() -> str:
        deadline, pause = time.monotonic() + limit, FIRST_PAUSE
        while True:
            # opening the parent makes NFS forget its cache of names that did not exist
            with os.scandir(folder.absolute().parent):
                if folder.is_dir():
                    return ""
            if time.monotonic() + pause > deadline:
                return f"did not see {where} within {limit:g} s, though rank 0 made it"
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    for verb, work, ours in (("make", make, first), ("see", see, not first)):
        started, wrong = time.monotonic(), ""
        try:
            # a little longer than the work, which has the limit itself
            wrong = within(limit + LONGEST_PAUSE, work) if ours else ""
        except NoAnswer:
            wrong = f"could not {verb} {where}: the storage gave no answer within {limit:g} s"
        except (OSError, ValueError) as error:  # no file system takes a NUL in a name
            after, why = time.monotonic() - started, getattr(error, "strerror", None) or error
            wrong = f"could not {verb} {where}, after {after:.1f} s: {why}"
        # each rank may need the whole limit before it comes
        brought = join_rendezvous(f"{verb} {path}", 2 * limit, wrong.encode(), peers)
        for rank, words in sorted(brought.items()):
            if words:
                raise MeetingFailed(
                    f"rank {rank} {words.decode()}",
                    "name a folder on storage that all ranks share and may write; see whether it "
                    "answers: timeout 5 stat -f on its parent",
                )
    return folder


@contextmanager
def locked(path: str | os.PathLike[str], timeout: float | None = None) -> Iterator[Path]:
    """Hold a lock while the body runs; a waiting process reports who holds it.

    The lock is ``flock`` on a file beside the path, as used by filelock, Hugging Face and torch. So
    it is released as soon as its holder ends, for whatever reason.

    Args:
        path: What is protected, or the lock file itself (``*.lock``); its folder must exist. Only
            the lock file is written.
        timeout: Seconds to wait for it; HANGCHECK_LOCK_TIMEOUT by default, 300.

    Raises:
        LockHeld: It was not free in time: who holds it (process, rank, host, command, since when).
        BadUsage: There can be no lock file, or the timeout is not a positive number.
    """
    check_limit("timeout", timeout)
    recorder = current()
    limit = timeout or recorder.settings.lock_timeout
    file = Path(path).absolute()
    file = file if file.suffix == SUFFIX else file.with_name(file.name + SUFFIX)
    try:
        within(min(limit, STORAGE_LIMIT), file.parent.stat)
    except NoAnswer as error:
        raise LockHeld(
            f"the lock {file} cannot be asked for: its folder's storage gave no answer ({error})",
            f"ask whether it answers: timeout 5 stat -f {file.parent}",
        ) from error
    except OSError as error:
        raise BadUsage(
            f"the lock file {file} cannot be made ({error.strerror})",
            "name a file in a folder that exists and that you may write",
        ) from error
    from filelock import FileLock, SoftFileLock, Timeout  # imports asyncio too: 20 ms

    lock, deadline, patience = FileLock(file), time.monotonic() + limit, 0.0
    with ExitStack() as waiting:
        while True:
            try:
                lock.acquire(timeout=patience)
                break
            except Timeout:
                left = deadline - time.monotonic()
                if not patience:  # it is not free at once
                    waiting.enter_context(Section(recorder, f"wait for the lock {file}"))
                    patience = notice_after(limit)
                    continue
                holder = find_holder(file)
                if left <= 0:
                    raise LockHeld(
                        f"the lock {file} was not free within {limit:g} s: held by {holder.words}",
                        holder.remedy or f"look for it there; if nobody has it, delete {file}",
                    ) from None
                sentence = f"the lock {file} is held by {holder.words}"
                waits = f"this process waits for it, for {limit:g} s at most"
                log.once(sentence, f"{sentence}; {waits}")
                patience = min(NOTICE_AFTER, left)
            except OSError as error:
                raise BadUsage(
                    f"the lock file {file} cannot be opened ({error.strerror})",
                    "make it writable for all who share it, or name another one",
                ) from error
    try:
        earlier = read_record(file)
        if earlier is not None and earlier.machine and earlier.is_here and has_ended(earlier.pid):
            log.once(
                f"left-{file}",
                f"the lock {file} was left by {earlier.who}, which ended inside it; what it "
                "protects may be half done",
            )
        # a soft lock (if flock is not supported) has its own text in the file
        kernel_keeps_it = not isinstance(lock, SoftFileLock)
        if kernel_keeps_it:
            rank = recorder.identity.rank
            write_record(file, Record.of(os.getpid(), rank, sys.orig_argv, utc_now()))
        try:
            yield file
        finally:
            if kernel_keeps_it:
                write_record(file, None)
    finally:
        lock.release()


class Record(Struct, frozen=True):
    """What a holder writes into the lock file, a field a line; soft locks of filelock begin alike.

    Containers may share a host name and use the same process ids, hence ``machine``.
    """

    pid: int
    host: str
    rank: str = ""
    since: str = ""
    command: str = ""
    machine: str = ""

    @classmethod
    def of(cls, pid: int, rank: int | None, words: list[str], since: str = "") -> Record:
        """Describe a process of this machine."""
        command, named = show_command(words), "" if rank is None else f"rank {rank}"
        if len(command) > LONGEST_COMMAND:
            command = f"{command[: LONGEST_COMMAND - 3]}..."
        return cls(pid, socket.gethostname(), named, since, command, which_machine())

    @property
    def who(self) -> str:
        """The holder in words."""
        rank = f"{self.rank}, " if self.rank else ""
        command = f", {self.command}" if self.command else ""
        return f"pid {self.pid} ({rank}host {self.host}{command})"

    @property
    def is_here(self) -> bool:
        """Whether its process id is visible from here, as far as the record says."""
        if self.machine and which_machine():
            return self.machine == which_machine()
        return self.host == socket.gethostname()


def write_record(file: Path, record: Record | None) -> None:
    """Write who holds the lock, or that nobody does; optional, so a failure is ignored."""
    # A file with other content is left alone: poetry.lock is no lock file.
    with suppress(OSError):
        if not file.stat().st_size or read_record(file) is not None:
            fields = () if record is None else astuple(record)
            file.write_text("".join(f"{field}\n" for field in fields), encoding="utf-8")


def read_record(file: Path) -> Record | None:
    """Read what the last holder wrote; None if it cannot be read in time."""

    def read() -> list[str]:
        with file.open("rb") as opened:
            return opened.read(LONGEST_RECORD).decode(errors="replace").splitlines()

    try:
        lines = within(READ_LIMIT, read)
    except (NoAnswer, OSError):
        return None
    if len(lines) < 2 or not lines[0].isdecimal():
        return None
    return Record(int(lines[0]), *(one_line(redact_text(line)) for line in lines[1:6]))


class Holder(NamedTuple):
    """Who holds a lock, in words, and what can be done about it, if known."""

    words: str
    remedy: str = ""


def find_holder(file: Path) -> Holder:
    """Find a lock file's holder, in about 3 s; the kernel overrides the file. Never raises."""
    record = read_record(file)
    try:
        pids = holders_of(within(READ_LIMIT, file.stat), file_locks())
    except (NoAnswer, OSError):
        pids = ()
    if pids and not (record is not None and record.pid == pids[0] and record.is_here):
        command, environment = command_line(pids[0]), read_environment(pids[0])
        rank = None if isinstance(environment, Gap) else identify(environment).rank
        record = Record.of(pids[0], rank, [] if isinstance(command, Gap) else command)
    if record is None:
        return Holder(
            "nobody that is seen from here: a process on another host, or in another container"
        )
    pid, words = record.pid, f"{record.who}{f', since {record.since}' if record.since else ''}"
    if not pids and not record.is_here:
        elsewhere = "host" if record.host != socket.gethostname() else "container"
        return Holder(f"{words}, which cannot be seen from this {elsewhere}")
    gone, signs = has_ended(pid), vitals(pid)
    if gone and pids:  # the kernel names who took the lock
        return Holder(f"{words}, which has ended; a child of it has the lock still")
    if gone and not record.machine:
        unseen = "which has ended, or is of another container that has this host's name"
        return Holder(f"{words}, {unseen}")
    if gone:
        return Holder(f"{words}, which has ended", f"its holder is gone: delete {file}")
    look = (
        f"see where it stands: py-spy dump --pid {pid}; if it is only slow, allow more time: "
        "timeout=... or HANGCHECK_LOCK_TIMEOUT=..."
    )
    if pid == os.getpid():
        return Holder("this process itself", "take it once, around all that it protects")
    stopped = ", which is stopped" if signs is not None and signs.state in "Tt" else ""
    return Holder(words + stopped, look)
