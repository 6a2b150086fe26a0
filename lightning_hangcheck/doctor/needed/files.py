"""Files that a run cannot do without, and how old they are."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.text.amounts import bytes_in_words

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

NAME = "needed files"
TIME_LIMIT_S = 3.0
FIRST_BYTES = 4096


class Seen(NamedTuple):
    """A file or folder as it was found; of a folder the newest that lies in it counts."""

    size: int
    changed_at: float


def needed_files(subject: Subject, now: float | None = None) -> tuple[Check, ...]:
    """Look at each file that is needed: there, readable, not empty, fresh where that is asked.

    Args:
        subject: The run.
        now: Seconds since 1970; the clock's where None.
    """
    clock = time.time() if now is None else now
    return tuple(_check(Path(path), subject.fresh_minutes, clock) for path in subject.needs)


def _check(path: Path, fresh_minutes: float | None, now: float) -> Check:
    try:
        seen = apart(TIME_LIMIT_S, lambda: _see(path))
    except FileNotFoundError:
        return Check(NAME, "failed", f"{path} is not there", f"ls -l {path.parent}")
    except (OSError, NoAnswerFromStorage) as error:
        return Check(NAME, "failed", f"{path} cannot be read: {error}", f"ls -l {path}")
    if not seen.size:
        return Check(NAME, "failed", f"{path} is empty", f"make it anew: {path}")
    minutes = (now - seen.changed_at) / 60
    found = f"{path}: {bytes_in_words(seen.size)}, {_age(minutes)} old"
    if fresh_minutes is not None and minutes > fresh_minutes:
        limit = f"more than the {fresh_minutes:g} minutes of --fresh"
        return Check(NAME, "failed", f"{found}, {limit}", f"make it anew: {path}")
    return Check(NAME, "ok", found)


def _see(path: Path) -> Seen:
    if not path.is_dir():
        with path.open("rb") as file:
            file.read(FIRST_BYTES)
        state = path.stat()
        return Seen(state.st_size, state.st_mtime)
    inside = [one.stat() for one in path.iterdir()]
    newest = max((one.st_mtime for one in inside), default=path.stat().st_mtime)
    return Seen(sum(one.st_size for one in inside), newest)


def _age(minutes: float) -> str:
    if minutes < 120:
        return f"{max(0.0, minutes):.0f} minutes"
    return f"{minutes / 60:.0f} h" if minutes < 2880 else f"{minutes / 1440:.0f} days"
