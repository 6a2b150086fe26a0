"""Shared memory that killed jobs left behind is freed by the next job of the same user."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

LEFT_BEHIND_AFTER_S = 3600.0
"""A job whose ranks have no process yet is minutes old at most."""


def remove_left_behind(sessions: Path) -> None:
    """Remove sessions that are old and whose recording processes are all gone.

    A session without pages is one whose ranks have all left, or never came. Processes of another
    pid namespace that share this memory cannot be seen; a page that was written lately speaks for
    them.

    Args:
        sessions: Folder of this user's sessions.
    """
    try:
        folders = [folder for folder in sessions.iterdir() if folder.is_dir()]
    except OSError:
        return
    for folder in folders:
        if _is_left_behind(folder, time.time()):
            shutil.rmtree(folder, ignore_errors=True)


def _is_left_behind(session: Path, now_s: float) -> bool:
    pages = session / "pages"
    try:
        newest = max(path.stat().st_mtime for path in (session, pages, *pages.iterdir()))
        pids = [page.stem for page in pages.glob("*.page")]
        return now_s - newest > LEFT_BEHIND_AFTER_S and not any(map(_is_there, pids))
    except OSError:
        return False


def _is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()
