"""The run folder of `hangcheck run`: as named, on each of a job's nodes, or a temporary one."""

from __future__ import annotations

import os
import socket

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnpreparedRunFolder, UnreadableRun, UsedRunFolder
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.safe import EVIDENCE_BYTES, decode, read_owned
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RunRecord
from lightning_hangcheck.rundir import (
    RunFolder,
    claim_run_folder,
    folder_of_node,
    folder_of_start,
    name_run_folder,
    prepare_run_folder,
    starts_so_far,
)
from lightning_hangcheck.session.run_folders import kept_instead, temporary_run_folder

DISK_LIMIT_S = 1.0
"""The command waits for this; a second is what a user does not notice beside the start of torch."""
SCHEDULERS = (
    "SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "PBS_JOBID", "LSB_JOBID", "AWS_BATCH_JOB_ID",
)  # fmt: skip
"""Set by those who start a job, and start it again with the same words, at night."""


def take_run_folder(
    wanted: str | None, record: RunRecord, number: int = 0, *, scheduled: bool = False
) -> RunFolder:
    """Make a folder this run's own. Training goes on without: an unusable one is replaced.

    All nodes of a job may be given one folder: the first node takes it, the others, by ``number``,
    one below. Where no node has a number yet, the first to come takes it. A scheduler that starts a
    job again gives it the same folder once more, and nobody is there to name another: it is kept
    below. UsedRunFolder where somebody can.
    """
    number = number if wanted is not None else 0
    top = name_run_folder(wanted)

    def take(start: RunFolder) -> RunFolder:
        folder = folder_of_node(str(start.path), str(number)) if number else start
        return _taken(folder, record, below=number > 0)

    def take_for_next_start() -> RunFolder:
        """Take the folder of the newest start in which this node has none yet, or of one more.

        So all nodes find the same one without a word between them. A start that is over takes
        nobody in: a node that was not there then belongs to the next one.
        """
        start = starts_so_far(top)
        held = _record_in(folder_of_start(top, start))
        if start == 1 or (held is not None and held.ended_at is not None):
            start += 1
        while True:
            try:
                return take(folder_of_start(top, start))
            except UsedRunFolder:
                start += 1

    try:
        try:
            return apart(DISK_LIMIT_S, lambda: take(top))
        except UsedRunFolder as used:
            if not scheduled:
                raise
            later = apart(DISK_LIMIT_S, take_for_next_start)
            log.once("run folder", f"{used.args[0]}; this one is kept in {later.path}")
            return later
    except (UnpreparedRunFolder, NoAnswerFromStorage, OSError) as error:
        other = temporary_run_folder()
        log.once("run folder", kept_instead(top, error, other))
        return _taken(other, record)


def _taken(folder: RunFolder, record: RunRecord, *, below: bool = False) -> RunFolder:
    # where no number tells nodes apart, each takes one by its name; containers may have one name
    host = socket.gethostname().partition(".")[0]
    names = ["", *(() if below else (host, f"{host}-{os.urandom(4).hex()}"))]
    while True:
        name = names.pop(0)
        taken = folder_of_node(str(folder.path), name) if name else folder
        prepare_run_folder(taken)
        try:
            claim_run_folder(taken, encode_pretty(replace(record, run_id=taken.run_id)))
        except UsedRunFolder:
            # whether it is the same job that took it, which still goes on: on another node, then
            held = _record_in(taken)
            if not names or held is None or held.ended_at is not None:
                raise
            if not held.job or held.job != record.job:
                raise
        else:
            return taken


def _record_in(folder: RunFolder) -> RunRecord | None:
    try:
        return decode(read_owned(folder.run_file, EVIDENCE_BYTES), RunRecord, str(folder.run_file))
    except (OSError, UnreadableRun):
        return None
