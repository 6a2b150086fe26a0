"""What is asked about the files that a run reads."""

from __future__ import annotations

from typing import Final

from lightning_hangcheck.doctor.needed.backbone import TIME_LIMIT_S, model_fits
from lightning_hangcheck.doctor.needed.belonging import (
    LOOK_LIMIT_S,
    NAME,
    files_belong_together,
)
from lightning_hangcheck.doctor.needed.files import needed_files
from lightning_hangcheck.doctor.question import Question

GROUP: Final = "data"
DATA = (
    Question(
        GROUP,
        "needed files",
        "each file or folder named by --needs, and its age where --fresh is given",
        "a rank that finds nothing, or yesterday's file, fails or waits while the others go on",
        needed_files,
        limit_s=30.0,
    ),
    Question(
        GROUP,
        NAME,
        "what the ledger tells of the phases that made what --needs names, and from what",
        "labels of one version beside tokens of another train without an error, and for nothing",
        files_belong_together,
        limit_s=LOOK_LIMIT_S + 4.0,
    ),
    Question(
        GROUP,
        "model's files",
        "config.json, headers of the weights and tokenizer.json of --loads and of --backbone",
        "a checkpoint of another backbone fails late, or leaves weights as they were at random",
        model_fits,
        limit_s=2 * TIME_LIMIT_S,
    ),
)
