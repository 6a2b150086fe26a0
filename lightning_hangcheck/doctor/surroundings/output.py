"""Will the last line that a rank printed be seen while it hangs?"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.machine.printed_output import VARIABLE, is_unbuffered, kept_back_in

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

NAME = "output buffering"
STDERR = 2
"""Of doctor itself: its own stdout may go to a pipe where that of the run will not."""


def output_unbuffered(subject: Subject, descriptor: int = STDERR) -> tuple[Check, ...]:
    """Python keeps what is printed to a file or pipe for itself, 8 kB at a time.

    Args:
        subject: The run.
        descriptor: One that goes where the output of the run will go.
    """
    if is_unbuffered(subject.environment, ()):
        return (Check(NAME, "ok", f"{VARIABLE} is set"),)
    words = (*subject.launch.prefix, *subject.launch.program)
    if subject.launch.launcher in ("python", "slurm", "mpi") and is_unbuffered({}, words):
        return (Check(NAME, "ok", "Python is started with -u"),)
    where = _goes_to(subject, descriptor)
    if where is None:
        return (Check(NAME, "ok", "output goes to a terminal, a line at a time"),)
    sentence = f"output goes to {where}, and {VARIABLE} is not set: lines come 8 kB late"
    return (Check(NAME, "warning", sentence, f"export {VARIABLE}=1"),)


def _goes_to(subject: Subject, descriptor: int) -> str | None:
    """Where output goes that is no terminal; None for a terminal."""
    if "SLURM_JOB_ID" in subject.environment or subject.launch.launcher == "slurm":
        return "SLURM's log"
    if os.isatty(descriptor):
        return None
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return "nowhere"
    return kept_back_in(mode) or "a file"
