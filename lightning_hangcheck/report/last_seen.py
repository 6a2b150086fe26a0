"""When each rank last advanced, or how it ended, in a few characters."""

from __future__ import annotations

from datetime import datetime, timedelta
from signal import Signals
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import Case, RankView


def last_seen(case: Case | None) -> dict[int, str]:
    """Map each rank to ``since 10:23:45Z`` or, where its process is gone, to how it ended.

    Args:
        case: None gives an empty map. Times are UTC, as in verdict.json; a renderer does not ask
            the machine for its time zone.
    """
    if case is None:
        return {}
    taken = datetime.fromisoformat(case.taken_at.replace("Z", "+00:00"))
    return {view.rank: _seen(view, taken) for view in case.ranks}


def _seen(view: RankView, taken: datetime) -> str:
    if view.departure is None:
        return f"since {taken - timedelta(seconds=view.silent_for_s):%H:%M:%S}Z"
    return _exit(view.departure.exit_code)


def _exit(code: int | None) -> str:
    """Exit codes below 0 are signals, as in Python's subprocess."""
    if code is None:
        return "exit code unseen"
    if -code in set(Signals):
        return f"killed by {Signals(-code).name}"
    return f"exit code {code}"
