"""The first thing that a tired person reads: kind, who, where, and what the stall costs.

With it, in a few characters, when each rank last advanced or how it ended.
"""

from __future__ import annotations

from datetime import timedelta
from signal import Signals
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.wording import duration, hours_of_ranks
from lightning_hangcheck.ledger.spending import SECONDS_PER_HOUR, rank_hours
from lightning_hangcheck.report.paragraphs import INDENT, WIDTH, plain, wrapped
from lightning_hangcheck.text.moments import read_utc

if TYPE_CHECKING:
    from datetime import datetime

    from lightning_hangcheck.model.case import Case, RankView
    from lightning_hangcheck.model.naming.slugs import VerdictKind
    from lightning_hangcheck.model.verdict import Verdict

KIND_WORDS: dict[VerdictKind, str] = {
    "healthy": "every rank advances",
    "suspect": "a rank is silent and others wait for it; not yet proven",
    "slow": "the job advances, but far below its own pace; this is no hang",
    "hang": "no rank can advance, or some cannot and the rest wait for them",
    "dead": "a rank is gone and others wait for it",
    "crashed": "the job ended because a rank failed",
    "recovered": "the job advances again after a suspicion or a hang",
    "finished": "the job ended without a fault",
}
BLOCKED = ("hang", "dead", "suspect")
FEWEST_BLANKS = 2
HOURS_FROM_S = 2 * SECONDS_PER_HOUR


def headline(verdict: Verdict, most: int) -> list[str]:
    """Write the kind, the summary and the cost, on one line where they fit.

    Args:
        verdict: Of any kind.
        most: Largest number of lines; at least 2.
    """
    cost = stall_cost(verdict)
    lines = wrapped(summary(verdict), f"{verdict.verdict.upper()}  ", INDENT, most - bool(cost))
    if not cost:
        return lines
    room = WIDTH - len(lines[-1])
    if room >= len(cost) + FEWEST_BLANKS:
        return [*lines[:-1], lines[-1] + cost.rjust(room)]
    return [*lines, f"{INDENT}{cost}"]


def last_seen(case: Case | None) -> dict[int, str]:
    """Map each rank to ``since 10:23:45Z`` or, where its process is gone, to how it ended.

    Args:
        case: None gives an empty map, and so does one that was read from files. Times are UTC, as
            in verdict.json; a renderer does not ask the machine for its time zone.
    """
    if case is None or case.left is not None:
        return {}
    taken = read_utc(case.taken_at)
    return {view.rank: _seen(view, taken) for view in case.ranks}


def summary(verdict: Verdict) -> str:
    """Return the verdict's sentence, or its kind's where it has none."""
    return plain(verdict.summary) or KIND_WORDS[verdict.verdict]


def stall_cost(verdict: Verdict) -> str:
    """What the stall costs so far; a rank hour is one rank's place for one hour, used or not."""
    if verdict.stalled_for_s <= 0 or verdict.verdict not in (*BLOCKED, "recovered"):
        return ""
    hours = rank_hours(verdict.world_size, verdict.stalled_for_s)
    verb = "blocked" if verdict.verdict in BLOCKED else "was blocked"
    return f"job {verb} {_duration(verdict.stalled_for_s)} = {hours_of_ranks(hours)} rank h"


def _duration(seconds: float) -> str:
    """As in a verdict's sentence, but in hours from two hours on: it stands beside rank hours."""
    return duration(seconds) if seconds < HOURS_FROM_S else f"{seconds / SECONDS_PER_HOUR:.1f} h"


def _seen(view: RankView, taken: datetime) -> str:
    if view.process_exit is None:
        return f"since {taken - timedelta(seconds=view.silent_for_s):%H:%M:%S}Z"
    return _exit(view.process_exit.exit_code)


def _exit(code: int | None) -> str:
    """Exit codes below 0 are signals, as in Python's subprocess."""
    if code is None:
        return "exit code unseen"
    if -code in set(Signals):
        return f"killed by {Signals(-code).name}"
    return f"exit code {code}"
