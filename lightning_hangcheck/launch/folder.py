"""The run folder of `hangcheck run`: as named, on each of a job's nodes, or a temporary one."""

from __future__ import annotations

import os
import socket

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir.layout import (
    RunFolder,
    claim_run_folder,
    folder_of_node,
    name_run_folder,
    prepare_run_folder,
)
from lightning_hangcheck.session.run_folders import kept_instead, temporary_run_folder

DISK_LIMIT_S = 1.0
"""The command waits for this; a second is what a user does not notice beside the start of torch."""


def take_run_folder(wanted: str | None, record: RunRecord, number: int = 0) -> RunFolder:
    """Make a folder this run's own. Training goes on without: an unusable one is replaced.

    All nodes of a job may be given one folder: the first node takes it, the others one below it.
    Where no node has a number yet, the first to come takes it.

    Args:
        wanted: As the user named it, if at all.
        record: What is known of the run; its ``run_id`` becomes the folder's name.
        number: Which of the job's nodes this one is, 0 also where that is not known.

    Raises:
        UsedRunFolder: It holds another run.
    """
    below = number > 0 and wanted is not None
    folder = folder_of_node(wanted, str(number)) if below else name_run_folder(wanted)
    try:
        return apart(DISK_LIMIT_S, lambda: _taken(folder, record, below=below))
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        other = temporary_run_folder()
        log.once("run folder", kept_instead(folder, error, other))
        return _taken(other, record)


def _taken(folder: RunFolder, record: RunRecord, *, below: bool = False) -> RunFolder:
    prepare_run_folder(folder)
    try:
        claim_run_folder(folder, encode_pretty(replace(record, run_id=folder.run_id)))
    except UsedRunFolder:
        if below or not _is_of_another_node(folder, record):
            raise
        host = socket.gethostname().partition(".")[0]
        return _below(folder, host, record)
    return folder


def _below(folder: RunFolder, host: str, record: RunRecord) -> RunFolder:
    """Take a folder named by the host; containers may have one name: then by a few letters, too."""
    try:
        return _taken(folder_of_node(str(folder.path), host), record, below=True)
    except UsedRunFolder:
        if not _is_of_another_node(folder_of_node(str(folder.path), host), record):
            raise
        apart_from = f"{host}-{os.urandom(4).hex()}"
        return _taken(folder_of_node(str(folder.path), apart_from), record, below=True)


def _is_of_another_node(folder: RunFolder, record: RunRecord) -> bool:
    """Whether it is the same job that took it, which still goes on: on another node, then."""
    try:
        held = decode(read_owned(folder.run_file, EVIDENCE_BYTES), RunRecord, str(folder.run_file))
    except (OSError, UnreadableRun):
        return False
    return bool(record.job) and held.job == record.job and held.ended_at is None
