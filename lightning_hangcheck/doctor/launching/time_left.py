"""How long does SLURM let the job run, and is that enough?"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.earlier_work import read_ledger
from lightning_hangcheck.doctor.launching.earlier_runs import expect
from lightning_hangcheck.ledger.book import Run
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.shown_command import show_command

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.launching.earlier_runs import Expected
    from lightning_hangcheck.doctor.subject import Subject

NAME = "time left"
LEAST_S = 600.0
"""Less than ten minutes is not enough for start, one checkpoint and an orderly end."""
ROOM = 1.2
"""Times what a run should take: nodes differ by that much."""


def time_left(subject: Subject, now: float | None = None) -> tuple[Check, ...]:
    """Compare the end of SLURM's job with the clock, and with what earlier runs took.

    Args:
        subject: The run.
        now: Seconds since 1970; the clock's where None.
    """
    text = subject.environment.get("SLURM_JOB_END_TIME", "")
    if not text.isdecimal():
        return ()
    left = max(0.0, int(text) - (time.time() if now is None else now))
    ends = f"SLURM ends this job in {seconds_in_words(left)}"
    if left < LEAST_S:
        job = subject.environment.get("SLURM_JOB_ID", "JOB")
        return (Check(NAME, "warning", ends, f"scontrol update JobId={job} TimeLimit=+2:00:00"),)
    expected = _expected(subject)
    if expected is None or (expected.seconds < left and not expected.done):
        return (Check(NAME, "ok", ends),)
    if expected.seconds < left:
        return (Check(NAME, "ok", f"{ends}; {_told(expected)}"),)
    return (Check(NAME, "warning", f"{_told(expected)}, but {ends}", _remedy(expected)),)


def _expected(subject: Subject) -> Expected | None:
    """None without a ledger, or without an earlier run of this command in it."""
    if not subject.command:
        return None
    runs = [line for line in read_ledger(subject).lines if isinstance(line, Run)]
    return expect(_as_kept(subject.command), runs)


def _as_kept(command: tuple[str, ...]) -> list[str]:
    """The words as the ledger has them: without secrets."""
    return shlex.split(show_command(command))


def _told(expected: Expected) -> str:
    run = expected.run.run_id
    took = seconds_in_words(expected.run.duration_s)
    if not expected.done:
        return f"an earlier run ({run}) was not done after {took}"
    return f"at the pace of {run} ({took}) this run takes {seconds_in_words(expected.seconds)}"


def _remedy(expected: Expected) -> str:
    hours, minutes = divmod(round(expected.seconds * ROOM / 60), 60)
    return f"#SBATCH --time={hours}:{minutes:02d}:00, or save in time and resume from there"
