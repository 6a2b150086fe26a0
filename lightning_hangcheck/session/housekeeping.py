"""Shared memory that killed jobs left behind is freed by the next job of the same user."""

from __future__ import annotations

import os
import time
from pathlib import Path

from lightning_hangcheck.files.owned_file import read_owned

NAMESPACE_FILE = "namespace"
LEFT_BEHIND_AFTER_S = 3600.0
"""A job whose ranks have no process yet is minutes old at most."""


def remove_left_behind(sessions: Path) -> None:
    """Remove sessions that are old and whose recording processes are all gone.

    A session without pages is one whose ranks have all left, or never came. One that another pid
    namespace wrote (a container that shares this memory) is left alone: its processes cannot be
    seen from here.

    Args:
        sessions: Folder of this user's sessions.
    """
    try:
        folders = [folder for folder in sessions.iterdir() if folder.is_dir()]
    except OSError:
        return
    for folder in folders:
        if _is_left_behind(folder, time.time()):
            import shutil  # 2 ms that a rank does not pay at its start

            shutil.rmtree(folder, ignore_errors=True)


def pid_namespace() -> str:
    """Name the pid namespace of this process, for example ``pid:[4026531836]``."""
    return os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a name, no path


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
        pids = [page.stem for page in pages.glob("*.page")]
        return now_s - newest > LEFT_BEHIND_AFTER_S and not any(map(_is_there, pids))
    except OSError:
        return False


def _is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()
