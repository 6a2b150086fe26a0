"""What a sidecar tells `attach` and `report`: silence and pace of each rank, its newest verdict.

    <session>/watch.json   written once a second, in memory: no disk can delay it

Whoever attaches to a job that is watched sees it for some seconds only, and the kernel's record of
who slept for how long starts anew at each look of the sidecar. The sidecar has watched all the
time; what it knows is the history that `attach` lacks.
"""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.case import Pace
from lightning_hangcheck.model.verdict import Verdict


class RankNote(Struct, frozen=True, kw_only=True):
    """One rank that is there, as the sidecar knows it; times as in `RankView`.

    Attributes:
        started_ticks: With the pid, names the process for ever.
        step_s: Median seconds of its last steps; of its beats, where it shows no steps.
    """

    rank: int
    pid: int
    started_ticks: int
    silent_for_s: float
    idle_for_s: float
    circling_for_s: float
    pace: Pace | None = None
    step_s: float | None = None


class WatchNotes(Struct, frozen=True, kw_only=True):
    """watch.json.

    Attributes:
        written_ns: Monotonic time at which all of it held.
        newest: The newest verdict that was told, ``recovered`` too; None before the first.
        told_ns: When that was, monotonic.
    """

    schema_version: int = 1
    written_ns: int
    ranks: tuple[RankNote, ...] = ()
    newest: Verdict | None = None
    told_ns: int = 0
