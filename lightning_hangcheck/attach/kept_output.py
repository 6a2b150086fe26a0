"""A job that works in silence: what it prints may still be in its own buffer."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.judge.activity import describe_gpus, read_rank_activity
from lightning_hangcheck.judge.wording import duration, name_ranks, verb
from lightning_hangcheck.look.proc import command_line, read_environment
from lightning_hangcheck.machine import VARIABLE, is_unbuffered, kept_back_in
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict

SILENT_AFTER_S = 10.0
"""A log that has grown since tells enough; Lightning's bar is drawn several times a second."""
STORAGE_LIMIT_S = 1.0
MOST_RANKS = 8
"""Ranks that are looked at, 2 ms each: those of one machine print to one place."""


def kept_output(case: Case, verdict: Verdict) -> str | None:
    """Say that a job works though its log may be silent, and how its lines come at once.

    None where no rank was seen to work, its output is not kept back, or its file has just grown.
    """
    if verdict.verdict not in ("healthy", "slow"):
        return None
    seen = [(view, read_rank_activity(view)) for view in case.ranks]
    works = [(view, found) for view, found in seen if found.activity in ("moving", "busy")]
    try:
        known = [(*work, _why_silent(work[0].pid)) for work in works[:MOST_RANKS]]
    except NoAnswerFromStorage:
        return None
    silent = [(view, activity, kept) for view, activity, kept in known if kept is not None]
    if not silent:
        return None
    first, activity, (place, why) = silent[0]
    names = [view.rank for view, _, kept in silent if kept[0] == place]
    own = first.own_process
    use = [f"{activity.process_activity.cpu_share:.2f} of a core"]
    use += describe_gpus(own) if own is not None else ()
    return (
        f"{name_ranks(names)} {verb(names, 'works', 'work')} ({'; '.join(use)}), and what is "
        f"printed may still be in {verb(names, 'its', 'their')} buffer: {why}; next time: "
        f"{VARIABLE}=1, python -u, or print(..., flush=True)"
    )


def _why_silent(pid: int | None) -> tuple[str, str] | None:
    """Return what keeps the lines of a process back, and the sentence on it; None if nothing.

    A pipe does not tell when it was written to last: only a file proves its silence.
    """
    if pid is None:
        return None
    environment, command = read_environment(pid), command_line(pid)
    if isinstance(environment, Gap) or isinstance(command, Gap):
        return None
    if is_unbuffered(environment, command):
        return None
    try:
        status = apart(STORAGE_LIMIT_S, Path(f"/proc/{pid}/fd/1").stat)  # its standard output
    except OSError:
        return None
    place = kept_back_in(status.st_mode)
    if place is None:
        return None
    if not stat.S_ISREG(status.st_mode):
        unset = f"standard output is {place} and {VARIABLE} is not set"
        return place, f"{unset}, so if the log is silent, that may be why"
    silent_for_s = time.time() - status.st_mtime
    if silent_for_s < SILENT_AFTER_S:
        return None
    grown = f"standard output is {place} that has not grown for {duration(silent_for_s)}"
    return place, f"{grown}, and {VARIABLE} is not set"
