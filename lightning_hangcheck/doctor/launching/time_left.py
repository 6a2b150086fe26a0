"""How long does SLURM let the job run?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

NAME = "time left"
LEAST_S = 600.0
"""Less than ten minutes is not enough for start, one checkpoint and an orderly end."""


def time_left(subject: Subject, now: float | None = None) -> tuple[Check, ...]:
    """Compare the end of SLURM's job with the clock.

    Args:
        subject: The run.
        now: Seconds since 1970; the clock's where None.
    """
    text = subject.environment.get("SLURM_JOB_END_TIME", "")
    if not text.isdecimal():
        return ()
    left = int(text) - (time.time() if now is None else now)
    if left < LEAST_S:
        sentence = f"SLURM ends this job in {max(0.0, left) / 60:.0f} minutes"
        job = subject.environment.get("SLURM_JOB_ID", "JOB")
        return (
            Check(NAME, "warning", sentence, f"scontrol update JobId={job} TimeLimit=+2:00:00"),
        )
    return (Check(NAME, "ok", f"SLURM lets this job run for {left / 3600:.1f} h more"),)
