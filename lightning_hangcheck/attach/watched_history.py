"""What a sidecar saw before we attached: how much of it still counts. Pure.

Its notes are a second old while it runs. One that is stopped, starved or gone leaves older ones:
they count for a rank that, by the kernel's record, has not run since. Of any other nobody knows
what it did meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.observe.discovery import FoundRank
    from lightning_hangcheck.observe.watch_notes import RankNote, WatchNotes

FRESH_S = 5.0
"""Age up to which notes tell the present; `hangcheck attach` looks for two seconds itself."""
WHAT_WATCHER_SAW = "what the job's watcher saw"
STANDS = ("hang", "dead", "crashed")
"""Verdicts that an exit code tells, until the sidecar says that the job recovered."""


def history(
    notes: WatchNotes, ranks: Sequence[FoundRank], slept: Mapping[int, float], now_ns: int
) -> dict[int, RankNote]:
    """Return, by rank, what the sidecar knows of it, brought up to the present.

    Args:
        notes: The newest.
        ranks: Whom we found.
        slept: By process id, seconds for which it has not run by now, as the kernel has it.
        now_ns: Monotonic.
    """
    age_s = _age_s(notes, now_ns)
    found = {(rank.rank, rank.pid, rank.started_ticks) for rank in ranks}
    return {
        note.rank: replace(
            note,
            silent_for_s=note.silent_for_s + age_s,
            idle_for_s=note.idle_for_s + age_s,
            circling_for_s=note.circling_for_s + age_s,
        )
        for note in notes.ranks
        if (note.rank, note.pid, note.started_ticks) in found
        and (age_s <= FRESH_S or slept.get(note.pid, 0.0) >= age_s)
    }


def stale_notes(notes: WatchNotes, now_ns: int) -> tuple[Gap, ...]:
    """Say that the sidecar does not tell the present, where it does not."""
    age_s = _age_s(notes, now_ns)
    if age_s <= FRESH_S:
        return ()
    why = (
        f"its newest note is {age_s:.0f} s old: it is stopped, has no processor, or has ended; "
        "what ranks did since is known only of those that slept"
    )
    return (Gap(WHAT_WATCHER_SAW, None, why, "watcher"),)


def hang_stands(notes: WatchNotes, case: Case) -> bool:
    """Whether a hang that the sidecar told stands at the moment of a case.

    The sidecar takes it back some seconds after its culprits have progressed. Until then its notes
    show that they have, and the case what came after the notes.
    """
    age_s = _age_s(notes, case.taken_ns)
    if notes.newest is None or notes.newest.verdict not in STANDS or age_s > FRESH_S:
        return False
    culprits = notes.newest.culprits
    told_s = (notes.written_ns - notes.told_ns) / NANOSECONDS
    alive = {note.rank: note.silent_for_s for note in notes.ranks if note.rank in culprits}
    if alive and all(silent_s < told_s for silent_s in alive.values()):
        return False
    seen = [view for view in case.ranks if view.rank in culprits]
    return any(view.process_exit is not None or view.silent_for_s >= age_s for view in seen)


def _age_s(notes: WatchNotes, now_ns: int) -> float:
    return max(0.0, (now_ns - notes.written_ns) / NANOSECONDS)
