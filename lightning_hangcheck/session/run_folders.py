"""Chooses a session's run folder."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import HangcheckError, UnpreparedRunFolder, UsedRunFolder
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import RunFolder, claim_run_folder, prepare_run_folder

if TYPE_CHECKING:
    from lightning_hangcheck.session.session import Session


CLAIMED_WITHIN_S = 2.0
"""Time for run.json to be complete once it exists: written at once, but network disks wait."""
POLL_S = 0.05
UNUSABLE = (UnpreparedRunFolder, UsedRunFolder, OSError)


class Settled(NamedTuple):
    """The folder, and a sentence if it is not the named folder, which the caller reports."""

    folder: RunFolder
    trouble: str = ""


def settle_run_folder(session: Session) -> Settled:
    """Decide where to keep a session's run, and prepare that folder; OSError if no room is left."""
    facts = session.facts
    if facts.launched or session.run_folder_file.exists():
        return Settled(prepare_run_folder(session.run_folder))
    named = RunFolder(Path(facts.run_dir))
    try:
        _take(named, session)
    except UNUSABLE as error:
        import hashlib  # 1 ms, and hardly ever needed

        # beside the named folder, where all nodes of the job find it alike
        mark = hashlib.sha256(facts.job.encode()).hexdigest()[:8]
        other = RunFolder(named.path.with_name(f"{named.path.name}-{mark}"))
        try:
            _take(other, session)
        except UNUSABLE:
            other = temporary_run_folder()
        return _agree(session, other, kept_instead(named, error, other))
    return _agree(session, named, "")


def prepare_settled(session: Session) -> RunFolder:
    """Prepare a session's folder for a rank that writes it; log that it is not the named one."""
    folder, trouble = settle_run_folder(session)
    if trouble:
        log.once("run folder", trouble)
    return folder


def settle_elsewhere(session: Session, why: Exception) -> Settled:
    """Keep the run in a temporary folder, because the named folder's disk does not answer."""
    other = temporary_run_folder()
    return _agree(session, other, kept_instead(RunFolder(Path(session.facts.run_dir)), why, other))


def temporary_run_folder() -> RunFolder:
    """Make an empty run folder for temporary files; OSError if there is no room."""
    import tempfile  # 2 ms, and hardly ever needed

    return RunFolder(Path(tempfile.mkdtemp(prefix="hangcheck-run-")))


def kept_instead(named: RunFolder, why: Exception, other: RunFolder) -> str:
    """Say that a run is kept elsewhere than asked."""
    known = isinstance(why, HangcheckError)  # its sentence names the folder
    said = f"{why}" if known else f"run folder {named.path} cannot be used ({why})"
    return f"{said}; this run is kept in {other.path} instead"


def _agree(session: Session, found: RunFolder, trouble: str) -> Settled:
    data = files.create_once(session.run_folder_file, os.fsencode(found.path))
    agreed = RunFolder(Path(os.fsdecode(data)))
    if agreed != found:
        with suppress(OSError):  # a temporary folder of ours, still empty
            found.path.rmdir()
    return Settled(prepare_run_folder(agreed), trouble if agreed == found else "")


def _take(folder: RunFolder, session: Session) -> None:
    """Claim a folder for this job, or find that it is this job's; raises one of `UNUSABLE`."""
    facts = session.facts
    record = RunRecord(
        run_id=folder.run_id, command=facts.command, started_at=facts.started_at, job=facts.job
    )
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(record))
    except UsedRunFolder:
        # find whose run it is; another process may still be writing the file
        deadline, job = time.monotonic() + CLAIMED_WITHIN_S, None
        while facts.job and job is None and time.monotonic() < deadline:
            held = files.read_fact(folder.run_file, RunRecord, files.EVIDENCE_BYTES)
            job = None if held is None else held.job
            if held is None:
                time.sleep(POLL_S)
        if not job or job != facts.job:
            raise
