"""The place of the checkpoints, on any file system of fsspec: there, writable, large enough?

Looked at by a process of its own: a store that does not answer keeps nobody from ending.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import time
from itertools import pairwise
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.storing.rclone import REMOTE
from lightning_hangcheck.doctor.storing.tree import tree
from lightning_hangcheck.doctor.subject import DEPTH
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.text.amounts import bytes_in_words, seconds_in_words, several

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

PLACE = "checkpoints"
EXPECTED = "expected files"
WRITING = "writing checkpoints"
LOOK_LIMIT_S = 10.0
WRITE_LIMIT_S = 15.0
MOST_SHOWN = 12
TRIAL = "hangcheck-doctor-"
TRIAL_BYTES = 8 * 2**20
"""Enough to get past what a local disk's cache hides of a sync, 0.1 s on a slow network."""
KEPT_AT_ONCE = 2
"""A checkpoint is removed only after the next one is written."""


class NotThere(Exception):
    """There is nothing of that name; what cannot be opened below it is another matter."""


class Found(NamedTuple):
    """What is below a place.

    Attributes:
        files: Sizes by the path from there, as deep as was asked; without our own trial.
        free: Bytes that are left, None where nobody says.
    """

    files: dict[str, int]
    free: int | None

    @property
    def largest(self) -> int:
        """Bytes of the largest checkpoint: a file, or a folder with all in it."""
        sizes: dict[str, int] = {}
        for path, size in self.files.items():
            top = path.split("/")[0]
            sizes[top] = sizes.get(top, 0) + size
        return max(sizes.values(), default=0)


class Trial(NamedTuple):
    """Seconds that 8 MiB took.

    Attributes:
        sync_s: Until the disk has them; of a store elsewhere until it has taken the file.
        read_s: A disk of this machine reads from memory what was just written.
    """

    write_s: float
    sync_s: float
    read_s: float

    @property
    def save_s(self) -> float:
        """Until they are safe."""
        return self.write_s + self.sync_s

    @property
    def in_words(self) -> str:
        """The rates, and how long it took until they were safe."""
        return (
            f"written at {_rate(self.write_s)}, synchronised in {seconds_in_words(self.sync_s)} "
            f"({_rate(self.save_s)} together), read back at {_rate(self.read_s)}"
        )


def checkpoints_there(subject: Subject) -> tuple[Check, ...]:
    """Look at the place of the checkpoints, and for the files that are expected in it.

    Args:
        subject: The run, with a place.
    """
    url = subject.checkpoints
    if url is None:
        return ()
    try:
        found = apart(LOOK_LIMIT_S, lambda: _look(url, subject.depth))
    except NotThere:
        return (_not_there(url, "failed" if subject.expect else "warning"),)
    except Exception as error:  # noqa: BLE001 - each kind of store has errors of its own
        return (_unusable(PLACE, url, error),)
    number, size = several(len(found.files), "file"), bytes_in_words(sum(found.files.values()))
    deep = f", {subject.depth} folders deep" if subject.depth != DEPTH else ""
    place = Check(PLACE, "ok", f"{url}: {number}, {size}{deep}", details=tree(found.files))
    return (place, *(_expected(url, pattern, found.files) for pattern in subject.expect))


def checkpoints_writable(subject: Subject) -> tuple[Check, ...]:
    """Write 8 MiB there, read them back and remove them; compare with what is there already.

    Args:
        subject: The run, with a place.
    """
    url = subject.checkpoints
    if url is None:
        return ()
    try:
        trial = apart(WRITE_LIMIT_S, lambda: _write(url))
        found = apart(LOOK_LIMIT_S, lambda: _look(url, subject.depth))
    except NotThere:
        return ()  # `checkpoints_there` says so
    except Exception as error:  # noqa: BLE001 - each kind of store has errors of its own
        return (_unusable(WRITING, url, error),)
    speed = trial.in_words
    if found.largest:
        takes = seconds_in_words(found.largest / TRIAL_BYTES * trial.save_s)
        speed += f"; at this rate saving {bytes_in_words(found.largest)} takes {takes}"
    if found.free is not None and found.free < KEPT_AT_ONCE * found.largest:
        left = f"{bytes_in_words(found.free)} are left, less than two checkpoints take; {speed}"
        return (Check(WRITING, "failed", left, f"free some space: du -sh {quote(url)}/*"),)
    return (Check(WRITING, "ok", speed),)


def _look(url: str, depth: int) -> Found:
    """List what is there.

    Raises:
        NotThere: Nothing is.
    """
    system, root = _open(url)
    if not system.exists(root):
        raise NotThere(url)
    listed = system.find(root, maxdepth=depth, detail=True)
    start = len(root.rstrip("/")) + 1
    sizes = {path[start:]: int(one.get("size") or 0) for path, one in listed.items()}
    files = {path: size for path, size in sizes.items() if not path.startswith(TRIAL)}
    local = "file" in system.protocol
    return Found(files, shutil.disk_usage(root).free if local else None)


def _write(url: str) -> Trial:
    """Write, synchronise where it is a folder of this machine, and read back."""
    system, root = _open(url)
    if not system.exists(root):
        raise NotThere(url)
    trial, data = f"{root.rstrip('/')}/{TRIAL}{os.getpid()}", os.urandom(TRIAL_BYTES)
    moments = [time.monotonic()]
    try:
        with system.open(trial, "wb") as file:
            file.write(data)
            file.flush()
            moments.append(time.monotonic())
            if "file" in system.protocol:
                os.fsync(file.fileno())
        moments.append(time.monotonic())
        if system.cat_file(trial) != data:
            raise OSError("what was read is not what was written")
        moments.append(time.monotonic())
        return Trial(*(after - before for before, after in pairwise(moments)))
    finally:
        if system.exists(trial):
            system.rm_file(trial)


def _open(url: str) -> tuple[Any, str]:
    import fsspec  # comes with torch and Lightning; a place of checkpoints is asked for by name

    system, root = fsspec.core.url_to_fs(url)
    return system, str(root)


def _rate(seconds: float) -> str:
    return f"{bytes_in_words(TRIAL_BYTES / max(seconds, 1e-6))}/s"


def _expected(url: str, pattern: str, files: dict[str, int]) -> Check:
    matching = [path for path in files if fnmatch.fnmatch(path, pattern)]
    if matching:
        size = bytes_in_words(sum(files[path] for path in matching))
        return Check(EXPECTED, "ok", f"{pattern}: {several(len(matching), 'file')}, {size}")
    shown = ", ".join(sorted(files)[:MOST_SHOWN]) or "nothing"
    sentence = f"nothing below {url} is {pattern}; there is: {shown}"
    return Check(
        EXPECTED, "failed", sentence, f"correct --expect '{pattern}', or fetch what is missing"
    )


def _not_there(url: str, status: Literal["warning", "failed"]) -> Check:
    if REMOTE.match(url):
        sentence = f"{url} was not looked at: it is no folder here, and only rclone knows remotes"
        remedy = f"rclone lsf {quote(url)}, and name it as fsspec does: s3://BUCKET/PATH"
        return Check(PLACE, status, sentence, remedy)
    sentence = f"{url} is not there: a first run makes it, a resumed one finds nothing"
    remedy = "correct its spelling, or leave it to the first run"
    if "://" not in url:
        remedy = f"correct its spelling, or make it: mkdir -p {quote(url)}"
    return Check(PLACE, status, sentence, remedy)


def _unusable(name: str, url: str, error: Exception) -> Check:
    if isinstance(error, ImportError):
        sentence = f"{url} needs {error.name or error}, which is not installed"
        return Check(name, "warning", sentence, f"pip install {error.name or 'fsspec'}")
    why = (
        str(error) if isinstance(error, NoAnswerFromStorage) else f"{type(error).__name__}: {error}"
    )
    remedy = "name another place: --checkpoints, or see its credentials and rights"
    return Check(name, "failed", f"{url} cannot be used ({why})", remedy)
