"""A job that works in silence: what it prints may still be in its own buffer."""

from __future__ import annotations

import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.judge.activity import describe_gpus, read_rank_activity
from lightning_hangcheck.judge.wording import duration, name_ranks, verb
from lightning_hangcheck.look.proc import command_line, read_environment
from lightning_hangcheck.machine import VARIABLE, is_unbuffered, kept_back_in
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from lightning_hangcheck.judge.activity import RankActivity
    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.verdict import Verdict

SILENT_AFTER_S = 10.0
"""A log that has grown since tells enough; Lightning's bar is drawn several times a second."""
STORAGE_LIMIT_S = 1.0
MOST_RANKS = 8
"""Ranks that are looked at, 2 ms each: those of one machine print to one place."""
STANDARD_OUTPUT = 1
WORKS = ("moving", "busy")
GOES_ON = ("healthy", "slow")


class _Kept(NamedTuple):
    """What keeps a rank's lines back, and how long they have not been seen where that is known."""

    place: str
    silent_for_s: float | None


def kept_output(case: Case, verdict: Verdict) -> str | None:
    """Say that a job works though its log may be silent, and how its lines come at once.

    Args:
        case: What `attach` saw.
        verdict: On it.

    Returns:
        One sentence; None where no rank was seen to work, where the output is not kept back, or
        where its file has grown just now.
    """
    if verdict.verdict not in GOES_ON:
        return None
    seen = [(view, read_rank_activity(view)) for view in case.ranks]
    works = [(view, found) for view, found in seen if found.activity in WORKS][:MOST_RANKS]
    try:
        silent = [(*one, kept) for one in works if (kept := _kept(one[0].pid))]
    except NoAnswerFromStorage:
        return None
    if not silent:
        return None
    first, activity, why = silent[0]
    names = [view.rank for view, _, kept in silent if kept.place == why.place]
    return (
        f"{name_ranks(names)} {verb(names, 'works', 'work')} ({_use(first, activity)}), and "
        f"what is printed may still be in {verb(names, 'its', 'their')} buffer: {_why(why)}; next "
        f"time: {VARIABLE}=1, python -u, or print(..., flush=True)"
    )


def _why(kept: _Kept) -> str:
    """A pipe does not tell when it was written to last: only a file proves its silence."""
    if kept.silent_for_s is None:
        return (
            f"standard output is {kept.place} and {VARIABLE} is not set, so if the log is silent, "
            "that may be why"
        )
    since = duration(kept.silent_for_s)
    return (
        f"standard output is {kept.place} that has not grown for {since}, and {VARIABLE} is not set"
    )


def _use(view: RankView, activity: RankActivity) -> str:
    """Processor and GPUs of a rank, as its newest samples show them."""
    share = activity.process_activity.cpu_share
    own = view.own_process
    gpus = describe_gpus(own) if own is not None else ()
    return "; ".join([f"{share:.2f} of a core", *gpus])


def _kept(pid: int | None) -> _Kept | None:
    """Look at one process.

    Raises:
        NoAnswerFromStorage: The file that it prints to does not answer.
    """
    if pid is None:
        return None
    environment, command = read_environment(pid), command_line(pid)
    if isinstance(environment, Gap) or isinstance(command, Gap):
        return None
    if is_unbuffered(environment, command):
        return None
    try:
        status = apart(STORAGE_LIMIT_S, Path(f"/proc/{pid}/fd/{STANDARD_OUTPUT}").stat)
    except OSError:
        return None
    place = kept_back_in(status.st_mode)
    if place is None or not stat.S_ISREG(status.st_mode):
        return None if place is None else _Kept(place, None)
    silent_for_s = time.time() - status.st_mtime
    return _Kept(place, silent_for_s) if silent_for_s >= SILENT_AFTER_S else None
