"""Opens, writes and decodes files that others can reach, so that nobody is harmed.

A reader never sees half a file. Nothing is written through a link, and a folder or file of another
user is refused. Bytes that cannot be decoded raise an error with a remedy. Storage that may never
answer is touched in a process for which nobody waits.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without slow enumerations
import errno
import json
import mmap
import os
import select
import stat
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from lightning_hangcheck.errors import UnreadableRun

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, NamedTuple, TypeVar

    import msgspec

    Fact = TypeVar("Fact", bound="msgspec.Struct | NamedTuple")

    Result = TypeVar("Result")


FACT_BYTES = 1024 * 1024  # Limit for a session's small files, which have hundreds of bytes
EVIDENCE_BYTES = 256 * 1024 * 1024
"""Limit for a run folder's files: ten times the largest recorded case (22 kB per rank), for 1,024
ranks."""
_ROOT = 0
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_REFUSED = {errno.ELOOP: "a symbolic link", errno.ENXIO: "a socket or device"}
"""Meaning of these errors of open(2); the second also means a missing device."""


class UnusableFile(OSError):
    """The path exists but is not a file that we read; ``strerror`` says what it is."""


def open_owned(path: Path) -> int:
    """Open a file of ours for reading, without waiting; else `UnusableFile`. Callers close it."""
    # it must be a regular file, no link, and belong to this user, to root, or to the owner of its
    # folder: who may read a colleague's run folder, or a copy, may report it
    descriptor, found = _open_regular(path, os.O_NOFOLLOW)
    try:
        if found.st_uid not in (os.geteuid(), _ROOT, path.parent.stat().st_uid):
            why = f"it belongs to user id {found.st_uid}, its folder to another"
            raise UnusableFile(errno.EPERM, why, str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_owned(path: Path, largest: int = FACT_BYTES) -> bytes:
    """Read a whole file of ours; raises as `open_owned`, and if the file is too large."""
    return _whole(open_owned(path), path, largest)


def read_end_owned(path: Path, largest: int) -> tuple[bytes, int]:
    """Read the last bytes of a growing file of ours; return also how many come before them."""
    with os.fdopen(open_owned(path), "rb") as file:
        left_out = max(0, os.fstat(file.fileno()).st_size - largest)
        file.seek(left_out)
        return file.read(largest), left_out


def read_regular(path: Path, largest: int) -> bytes:
    """Read a file that anyone may own, such as a program's source; links are followed."""
    return _whole(_open_regular(path)[0], path, largest)


def _open_regular(path: Path, more: int = 0) -> tuple[int, os.stat_result]:
    try:
        descriptor = os.open(path, _SAFELY | more)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        why = f"it is {_REFUSED[error.errno]}, not a file"
        raise UnusableFile(errno.EINVAL, why, str(path)) from None
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode):
        return descriptor, found
    os.close(descriptor)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no regular file")
    raise UnusableFile(errno.EINVAL, f"it is {kind}, not a file", str(path))


def _whole(descriptor: int, path: Path, largest: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        data = file.read(largest + 1) if size <= largest else b""
    if max(size, len(data)) > largest:
        why = f"it has {max(size, len(data)):,} bytes; at most {largest:,} are read"
        raise UnusableFile(errno.EFBIG, why, str(path))
    return data


PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
FOR_ALL = 0o644  # For files that programs of any user of the machine read
NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Opens a file only if its path did not exist, neither as a file nor as a link."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NOT_OWNERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def write_atomically(path: Path, data: bytes, mode: int = PRIVATE_FILE) -> None:
    """Write to a temporary file beside it, then rename; on `OSError` the old file stays."""
    temporary = temporary_name(path)
    descriptor = os.open(temporary, os.O_WRONLY | NEW_FILE, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def temporary_name(path: Path) -> Path:
    """Return a name in the same folder that no process on any node has, and nobody can guess."""
    return path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")


def create_once(path: Path, data: bytes, largest: int = FACT_BYTES) -> bytes:
    """Create a file unless it exists, and return its content: of several writers one wins."""
    temporary = temporary_name(path)
    write_atomically(temporary, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return read_owned(path, largest)
    finally:
        temporary.unlink(missing_ok=True)
    return data


def open_for_append(path: Path) -> int:
    """Open or create a file of ours to read and append; PermissionError if it is not ours alone."""
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise _refused(path, "it is no file of its own; remove it")
        # the folder is known to be ours, so its owner is our number on that file system
        if found.st_uid != path.parent.stat().st_uid:
            raise _refused(path, f"it belongs to user id {found.st_uid}; remove it")
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def make_private_folder(path: Path, parts: Collection[str] | None = None) -> None:
    """Make a folder and its parents; the folder itself becomes private, even if it existed."""
    # An existing folder may contain ``parts``. A folder with other entries has another use: its
    # mode stays, and it is refused if others may write to it. PermissionError if it is a link,
    # belongs to somebody else, or is shared with others.
    with suppress(FileExistsError):
        path.mkdir(mode=PRIVATE_FOLDER, parents=True)
        return
    if path.is_symlink():
        raise _refused(path, "it is a link")
    descriptor = os.open(path, _FOLDER)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() and found.st_uid != _owner_of_new(descriptor):
            raise _refused(path, f"it belongs to user id {found.st_uid}")
        if not found.st_mode & _NOT_OWNERS:
            return
        inside = os.listdir(descriptor)  # noqa: PTH208 - of this very folder, whatever its name
        if found.st_mode & stat.S_ISVTX or (parts is not None and not set(inside) <= set(parts)):
            if found.st_mode & _OTHERS_WRITE:
                raise _refused(path, "others may write there, and it is not for this run alone")
            return
        with suppress(OSError):  # a file system without modes
            os.fchmod(descriptor, PRIVATE_FOLDER)
    finally:
        os.close(descriptor)


def _owner_of_new(folder: int) -> int | None:
    """Return our user id in that folder: other machines' file systems may use another number."""
    name = f".hangcheck-{os.urandom(4).hex()}"
    try:
        os.mkdir(name, PRIVATE_FOLDER, dir_fd=folder)
    except OSError:
        return None
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid
    finally:
        os.rmdir(name, dir_fd=folder)


def _refused(path: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, why, str(path))


SCHEMA_VERSION = 1


def encode_plain(fact: NamedTuple) -> bytes:
    """Encode a fact that ranks exchange; importing msgspec for it would take a rank 15 ms."""
    return json.dumps({"schema_version": SCHEMA_VERSION} | fact._asdict()).encode()


def decode(data: bytes, kind: type[Fact], source: str) -> Fact:
    """Decode a fact; `UnreadableRun` if the bytes are no fact or of another schema version."""
    made: Callable[[], Fact]
    try:
        if issubclass(kind, tuple):
            fields: dict[str, Any] = json.loads(data)
            version, made = fields.pop("schema_version"), partial(kind, **fields)  # type: ignore[assignment] # of this very kind
        else:  # imported here: a rank reads only plain facts
            from lightning_hangcheck.model.codec import json_decoder, version_of

            version, made = version_of(data), partial(json_decoder(kind).decode, data)
        if version == SCHEMA_VERSION:
            return made()
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UnreadableRun(
            f"{source} cannot be read: {error}", "name another run folder, or run again"
        ) from error
    raise UnreadableRun(
        f"{source} has schema_version {version}; this version reads {SCHEMA_VERSION}",
        "install the lightning-hangcheck that wrote it, or a newer one",
    )


def read_fact(file: Path, kind: type[Fact], most: int = FACT_BYTES) -> Fact | None:
    """Read a fact that another process wrote; None if there is none that can be read."""
    try:
        return decode(read_owned(file, most), kind, str(file))
    except (OSError, UnreadableRun):
        return None


def unreadable(path: Path, error: OSError) -> UnreadableRun:
    """Return the error that a file of a run cannot be read, with its remedy."""
    wrong = isinstance(error, (UnusableFile, IsADirectoryError))
    remedy = "remove it" if wrong else "read it as the user who made it"
    return UnreadableRun(
        f"{path} cannot be read ({error.strerror})", f"{remedy}, or name another run folder"
    )


def reserve(descriptor: int, size: int) -> mmap.mmap:
    """Map an open file of zeros; `OSError` if there is no room for it."""
    os.posix_fallocate(descriptor, 0, size)
    return mmap.mmap(descriptor, size)


def reserve_file(path: Path, size: int) -> mmap.mmap:
    """Make a private file and its folder, and map it; `OSError`, and an empty file, if full."""
    make_private_folder(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, PRIVATE_FILE)
    try:
        return reserve(descriptor, size)
    except OSError:
        os.ftruncate(descriptor, 0)
        raise
    finally:
        os.close(descriptor)


# Storage that may never answer. A thread that writes to a stalled file system is in state D: no
# signal ends the thread, and its process cannot end either. So a process that must end on time lets
# another process touch it.

CHUNK = 65_536
NAME = "hangcheck-apart"
"""Name of such a process in the kernel, at most 15 bytes. Its command line is its parent's."""


LEFT_FOR_S = 600
"""Late work may still end. But a fork of a process with threads may have a copy of a lock that
nobody releases, and would stay for ever."""


class NoAnswerFromStorage(Exception):
    """The storage did not answer in time; the work continues without us, or failed silently."""


def apart(time_limit_s: float, work: Callable[[], Result]) -> Result:
    """Do work in its own process, which costs 2 ms; `NoAnswerFromStorage` after the time limit."""
    # A late process stays for ten minutes. Import what the work needs beforehand: if another thread
    # is importing the same module, the fork gets a copy of its lock. Pickle must carry the result.
    import pickle  # before the fork; here, as ranks never need it and save 3 ms
    import warnings

    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns that a fork copies one thread of several; this one works, and ends
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _become_orphan(writer, work)
    os.close(writer)
    data, deadline = b"", time.monotonic() + time_limit_s
    with os.fdopen(reader, "rb", buffering=0) as answer:
        os.waitpid(child, 0)
        # until the other end is closed
        while select.select([answer], [], [], max(0.0, deadline - time.monotonic()))[0]:
            part = answer.read(CHUNK)
            if not part:
                break
            data += part
        else:
            data = b""
    if not data:
        raise NoAnswerFromStorage(f"no answer within {time_limit_s:g} s")
    outcome = pickle.loads(data)  # noqa: S301 - from our own fork, over a pipe that only it has
    if isinstance(outcome, Exception):
        raise outcome
    return outcome  # type: ignore[no-any-return]


def is_apart(pid: int) -> bool:
    """Whether a process does such work; it belongs to no job, whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n") == NAME
    except OSError:
        return False


def _become_orphan(writer: int, work: Callable[[], object]) -> None:
    """In the fork: leave the work to an orphan, which init collects when it ends."""
    try:
        with suppress(OSError):  # before the fork: the orphan has its name from its start
            Path("/proc/self/comm").write_text(NAME)
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
            signal.alarm(LEFT_FOR_S)
            let_go_of_streams()  # and all else that others wait to see closed
            os.closerange(3, writer)
            os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
            try:
                outcome = work()
            except Exception as error:  # noqa: BLE001 - raised again by the process that asked
                outcome = error
            import pickle

            os.write(writer, pickle.dumps(outcome))
    finally:
        os._exit(0)


def let_go_of_streams() -> None:
    """Replace the standard streams by /dev/null: others may read them to their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    if nothing > 2:
        os.close(nothing)
