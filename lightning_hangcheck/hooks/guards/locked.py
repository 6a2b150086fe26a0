"""A lock on a file, with a time limit and the holder's name while it waits."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, SoftFileLock, Timeout

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, LockHeld
from lightning_hangcheck.hooks.guards.lock_holder import (
    Holder,
    find_holder,
    left_by,
    own_record,
    read_record,
    write_record,
)
from lightning_hangcheck.hooks.wait_limit import NOTICE_AFTER, check_limit, notice_after
from lightning_hangcheck.recorder.api import section
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from filelock import BaseFileLock

SUFFIX = ".lock"
STORAGE_LIMIT = 10.0  # seconds for one look at the lock's folder; a network mount needs far less


@contextmanager
def locked(path: str | os.PathLike[str], timeout: float | None = None) -> Iterator[Path]:
    """Hold a lock while the body runs; whoever waits says who has it.

    Example:
        >>> with locked("cache/tokenizer.json"):
        ...     build_tokenizer_once()

    The lock is ``flock`` on a file beside the path, as filelock, Hugging Face and torch take it, so
    it is free as soon as its holder ends, however that ends. It is no rendezvous: ranks may
    take it in any order, or not at all.

    Args:
        path: What is protected, or the lock file itself (``*.lock``); its folder must exist. Only
            the lock file is written.
        timeout: Seconds to wait for it; HANGCHECK_LOCK_TIMEOUT by default, 300.

    Yields:
        The lock file.

    Raises:
        LockHeld: It was not free in time: who holds it (process, rank, host, command, since when).
            Every rank that waited says the same.
        BadUsage: There can be no lock file, or the timeout is no positive number.
    """
    check_limit("timeout", timeout)
    recorder = current()
    limit = timeout or recorder.settings.lock_timeout
    file = Path(path).absolute()
    file = file if file.suffix == SUFFIX else file.with_name(file.name + SUFFIX)
    _check_folder(file, limit)
    lock = FileLock(file)
    _acquire(lock, file, limit)
    try:
        _say_if_left_behind(file)
        # a soft lock (no flock there) has its own words in the file
        kernel_keeps_it = not isinstance(lock, SoftFileLock)
        if kernel_keeps_it:
            write_record(file, own_record(recorder.identity.rank))
        try:
            yield file
        finally:
            if kernel_keeps_it:
                write_record(file, None)
    finally:
        lock.release()


def _check_folder(file: Path, limit: float) -> None:
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


def _acquire(lock: BaseFileLock, file: Path, limit: float) -> None:
    started = time.monotonic()
    if _acquired(lock, file, 0.0):
        return
    with section(f"wait for the lock {file}"):
        patience = notice_after(limit)
        while not _acquired(lock, file, patience):
            holder = find_holder(file)
            left = limit - (time.monotonic() - started)
            if left <= 0:
                raise _not_free(file, limit, holder)
            sentence = f"the lock {file} is held by {holder.words}"
            log.once(sentence, f"{sentence}; this process waits for it, for {limit:g} s at most")
            patience = min(NOTICE_AFTER, left)


def _acquired(lock: BaseFileLock, file: Path, patience: float) -> bool:
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        return False
    except OSError as error:
        raise BadUsage(
            f"the lock file {file} cannot be opened ({error.strerror})",
            "make it writable for all who share it, or name another one",
        ) from error
    return True


def _not_free(file: Path, limit: float, holder: Holder) -> LockHeld:
    if holder.gone:
        remedy = f"its holder is gone: delete {file}"
    elif holder.pid is not None:
        remedy = (
            f"see where it stands: py-spy dump --pid {holder.pid}; if it is only slow, allow more "
            "time: timeout=... or HANGCHECK_LOCK_TIMEOUT=..."
        )
    else:
        remedy = f"look for it there; if nobody has it any more, delete {file}"
    return LockHeld(
        f"the lock {file} was not free within {limit:g} s: held by {holder.words}", remedy
    )


def _say_if_left_behind(file: Path) -> None:
    earlier = left_by(read_record(file))
    if earlier is not None:
        log.once(
            f"left-{file}",
            f"the lock {file} was left by {earlier}, which ended inside it; what it protects may "
            "be half done",
        )
