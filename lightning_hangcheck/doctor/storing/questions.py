"""What is asked about the place of the checkpoints."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.question import Question
from lightning_hangcheck.doctor.storing.checkpoints import (
    LOOK_LIMIT_S,
    WRITE_LIMIT_S,
    checkpoints_there,
    checkpoints_writable,
)
from lightning_hangcheck.doctor.storing.rclone import remotes_complete

GROUP: Final = "storage"
STORAGE = (
    Question(
        GROUP,
        "checkpoints",
        "the place named by --checkpoints, as deep as --depth says, and --expect",
        "a run that is resumed from nothing starts anew, or waits for a file that never comes",
        checkpoints_there,
        limit_s=LOOK_LIMIT_S + 2.0,
    ),
    Question(
        GROUP,
        "writing checkpoints",
        "8 MiB written there, synchronised, read back and removed; the space that is left",
        "a save that stalls or fills the disk holds up every rank in the next barrier",
        checkpoints_writable,
        limit_s=WRITE_LIMIT_S + LOOK_LIMIT_S + 2.0,
    ),
    Question(
        GROUP,
        "rclone remotes",
        "each block of rclone.conf: stray lines, type, provider, endpoint, credentials",
        'an incomplete remote fails late: "XML syntax error" where the endpoint is none of S3, '
        '"directory not found" where bucket or path are not those that were written',
        remotes_complete,
    ),
)
