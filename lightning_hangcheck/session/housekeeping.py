"""Shared memory that killed jobs left behind is freed by the next job of the same user."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from lightning_hangcheck.files.safe import read_owned
from lightning_hangcheck.machine import pid_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMESPACE_FILE = "namespace"
SESSION_FILE, SIDECAR_FILE = "session.json", "sidecar.json"
LEFT_BEHIND_AFTER_S = 3600.0
"""What is to be written next in a session that is being made comes within moments."""


class _Starter(Struct, frozen=True):
    """Of session.json: the process from which all ranks of this node come."""

    root_pid: int


class _Watcher(Struct, frozen=True):
    """Of sidecar.json."""

    pid: int


Told = TypeVar("Told", _Starter, _Watcher)


def remove_left_behind(sessions: Path) -> None:
    """Remove sessions that are old and whose processes are all gone.

    Its ranks may come hours after the command that starts them, and one whose clock is set by hours
    looks old at once: so a session stays while that command, or the sidecar, is there. One that
    another pid namespace wrote (a container that shares this memory) is left alone: its processes
    cannot be seen from here.
    """
    try:
        folders = [folder for folder in sessions.iterdir() if folder.is_dir()]
    except OSError:
        return
    for folder in folders:
        if _is_left_behind(folder, time.time()):
            import shutil  # 2 ms that a rank does not pay at its start

            shutil.rmtree(folder, ignore_errors=True)


def of_this_namespace(session: Path) -> bool:
    """Whether a session's processes can be seen from here.

    Raises:
        OSError: The session does not say.
    """
    return read_owned(session / NAMESPACE_FILE) == pid_namespace().encode()


def _is_left_behind(session: Path, now_s: float) -> bool:
    pages = session / "pages"
    try:
        if not of_this_namespace(session):
            return False
        newest = max(path.stat().st_mtime for path in (session, pages, *pages.iterdir()))
        if now_s - newest <= LEFT_BEHIND_AFTER_S:
            return False
        pids = [*(page.stem for page in pages.glob("*.page")), *_keepers(session)]
        return not any(Path(f"/proc/{pid}").exists() for pid in pids)
    except OSError:
        return False


def _keepers(session: Path) -> Iterator[int]:
    """Yield the processes that a session has besides its ranks."""
    starter = _told(session / SESSION_FILE, _Starter)
    if starter is not None:
        yield starter.root_pid
    watcher = _told(session / SIDECAR_FILE, _Watcher)
    if watcher is not None:
        yield watcher.pid


def _told(file: Path, kind: type[Told]) -> Told | None:
    try:
        return msgspec.json.decode(read_owned(file), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
