"""Where the run of a session is kept: in the folder that was named, unless that cannot be.

A folder may hold another job's run, belong to somebody else, or not be writable. Whoever writes
first looks, with the disk's time and never training's, and all processes of the node agree on what
it found. Processes of the same job on other nodes may share the folder.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.atomic import create_once
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir.layout import RunFolder, claim_run_folder, prepare_run_folder

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session

CLAIMED_WITHIN_S = 2.0
"""Time for run.json to be whole once it has appeared: it is written at once, network disks wait."""
POLL_S = 0.05


class Settled(NamedTuple):
    """The folder, and a sentence if it is not the one that was named; said by who found it out."""

    folder: RunFolder
    trouble: str = ""


def settle_run_folder(session: Session) -> Settled:
    """Find out where to keep a session's run, and prepare that folder. Touches the disk.

    Raises:
        UnpreparedRunFolder: Not even a temporary folder can be had.
        OSError: Likewise, or the session is gone.
    """
    if session.facts.launched or session.run_folder_file.exists():
        return Settled(prepare_run_folder(session.run_folder))
    named = RunFolder(Path(session.facts.run_dir))
    try:
        _take(named, session)
    except (UnpreparedRunFolder, UsedRunFolder, OSError) as error:
        other = _beside(named, session) or temporary_run_folder()
        return _agree(session, other, kept_instead(named, error, other))
    return _agree(session, named, "")


def settle_elsewhere(session: Session, why: Exception) -> Settled:
    """Keep a session's run in a temporary folder, where the disk of the named one does not answer.

    Args:
        session: Of the run.
        why: What is wrong with the named folder.

    Raises:
        UnpreparedRunFolder: Not even a temporary folder can be had.
        OSError: Likewise, or the session is gone.
    """
    other = temporary_run_folder()
    return _agree(session, other, kept_instead(RunFolder(Path(session.facts.run_dir)), why, other))


def temporary_run_folder() -> RunFolder:
    """Make an empty run folder where temporary files are.

    Raises:
        OSError: There is no room.
    """
    import tempfile  # 2 ms, and hardly ever needed

    return RunFolder(Path(tempfile.mkdtemp(prefix="hangcheck-run-")))


def kept_instead(named: RunFolder, why: Exception, other: RunFolder) -> str:
    """Say that a run is kept elsewhere than asked."""
    return (
        f"run folder {named.path} cannot be used: {why}; this run is kept in {other.path} instead"
    )


def _beside(named: RunFolder, session: Session) -> RunFolder | None:
    """A folder beside the named one that all nodes of the job find alike."""
    import hashlib  # 1 ms, and hardly ever needed

    mark = hashlib.sha256(session.facts.job.encode()).hexdigest()[:8]
    other = RunFolder(named.path.with_name(f"{named.path.name}-{mark}"))
    try:
        _take(other, session)
    except (UnpreparedRunFolder, UsedRunFolder, OSError):
        return None
    return other


def _agree(session: Session, found: RunFolder, trouble: str) -> Settled:
    data = create_once(session.run_folder_file, os.fsencode(found.path))
    agreed = RunFolder(Path(os.fsdecode(data)))
    if agreed != found:
        with suppress(OSError):  # a temporary one of ours, still empty
            found.path.rmdir()
    return Settled(prepare_run_folder(agreed), trouble if agreed == found else "")


def _take(folder: RunFolder, session: Session) -> None:
    """Make a folder this job's own, or find that it is.

    Raises:
        UsedRunFolder: It holds another run.
    """
    facts = session.facts
    record = RunRecord(
        run_id=folder.run_id, command=facts.command, started_at=facts.started_at, job=facts.job
    )
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(record))
    except UsedRunFolder:
        if not facts.job or _job_of(folder) != facts.job:
            raise


def _job_of(folder: RunFolder) -> str:
    """Read whose run it is, with a little patience for one who is just writing it."""
    deadline, file = time.monotonic() + CLAIMED_WITHIN_S, folder.run_file
    while True:
        try:
            return decode(read_owned(file, EVIDENCE_BYTES), RunRecord, str(file)).job
        except (OSError, UnreadableRun):
            if time.monotonic() > deadline:
                return ""
        time.sleep(POLL_S)
