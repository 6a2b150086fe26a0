"""What is asked about the files that a run reads."""

from __future__ import annotations

from lightning_hangcheck.doctor.needed.files import needed_files
from lightning_hangcheck.doctor.question import Question

GROUP = "data"
DATA = (
    Question(
        GROUP,
        "needed files",
        "each file or folder named by --needs, and its age where --fresh is given",
        "a rank that finds nothing, or yesterday's file, fails or waits while the others go on",
        needed_files,
        limit_s=30.0,
    ),
)
