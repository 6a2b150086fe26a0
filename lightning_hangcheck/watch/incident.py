"""The state of an incident: what is reported once, when it is over, and when the job ends.

Pure; time is a parameter, in monotonic nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from lightning_hangcheck.judge.exits import asked_by, ended_from_outside, failed, shown_by
from lightning_hangcheck.judge.wording import duration
from lightning_hangcheck.model.case import AskedEnd, Case, RankView
from lightning_hangcheck.model.slugs import SEVERITY, VerdictKind
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.observe.watched_rank import WatchedRank

Telling = Literal["line", "report", "named", "silent", "aftermath"]
"""``named``: a line that names the culprits of a hang whose culprits were unknown before."""
PROVEN = ("hang", "dead")
CALLED: dict[VerdictKind, str] = {
    "slow": "slow",
    "suspect": "suspected",
    "hang": "called a hang",
    "dead": "called dead",
}
"""What the message of a recovery calls the alarm that has ended."""
SETTLED_NS = 3 * NANOSECONDS
"""Time for which culprits must have advanced before a recovery is reported. After Ctrl-C a Python
program ends within 1 s, and its launcher's message arrives within 0.1 s."""
LAUNCHER_TOLD_NS = NANOSECONDS
"""A launcher reports a signal within 0.1 s; a much later message is about another signal."""
FIRST_REMINDER_S = 120.0
"""Each further reminder comes after twice the time: nine in ten hours."""
OBEYED_WITHIN_S = 60.0
"""Time after a request to end by which no new steps begin: SLURM kills 30 s after its SIGTERM
(KillWait), Lightning stops after the batch. A job that steps later was asked for something else."""


class Incident:
    """The current incident: none, or a verdict that still holds, with its case.

    ``advances_since_ns``: since when the culprits advance again; 0 while they do not.
    """

    def __init__(self) -> None:
        self.verdict: Verdict | None = None
        self.case: Case | None = None
        self.advances_since_ns = 0
        self._raised_ns = 0
        self._silent_before_s = 0.0
        self._named = False
        self._reminded_kind: VerdictKind | None = None
        self._kind_since_ns = 0
        self._remind_after_s = FIRST_REMINDER_S

    @property
    def proven(self) -> bool:
        """Whether the verdict is a proven hang."""
        return self.verdict is not None and self.verdict.verdict in PROVEN

    @property
    def suspected(self) -> str:
        """Summary of the suspicion; empty if there is none, or if the hang is proven."""
        suspects = self.verdict is not None and self.verdict.verdict == "suspect"
        return self.verdict.summary if self.verdict is not None and suspects else ""

    def take(self, verdict: Verdict, *, closer: bool = False) -> Telling | None:
        """Take the newest verdict; return how to report it, or None if nothing in it is new."""
        severity, current = SEVERITY.get(verdict.verdict, 0), self.verdict
        if severity == 0:
            return None
        if current is not None:
            known = SEVERITY[current.verdict]
            known_as = (current.verdict, current.culprits, current.cause)
            if known_as == (verdict.verdict, verdict.culprits, verdict.cause):
                more = len(verdict.ranks) > len(current.ranks)  # of further nodes
                self.verdict = verdict if more else current
                return "silent" if more or closer else None
            # Ranks that poll are awake at some looks, or get little processor time. A verdict that
            # only misses some culprits is no news while no rank waits for the missed ones.
            missed = set(current.culprits) - set(verdict.culprits)
            fewer = missed and set(verdict.culprits) <= set(current.culprits)
            fewer = fewer and verdict.cause == current.cause and missed.isdisjoint(verdict.victims)
            if severity < known or (severity == known and fewer and not self.proven):
                return None
        else:
            self._silent_before_s = verdict.stalled_for_s
        first = current is None or current.verdict not in PROVEN
        self.verdict = verdict
        if severity < SEVERITY["hang"]:
            return "line"
        named_before = self._named and not first
        self._named = named_before or bool(verdict.culprits)
        if first:
            return "report"
        return "named" if self._named and not named_before else "silent"

    def raised(self, case: Case) -> None:
        """Store the case of the verdict: a culprit that advances after this moment recovers."""
        self.case, self._raised_ns, self.advances_since_ns = case, case.taken_ns, 0

    def forgive(self, lapse_ns: int, now_ns: int) -> None:
        """Move the alarm's moment by a forgiven silence, or that would look like progress."""
        self._raised_ns = min(self._raised_ns + lapse_ns, now_ns)

    def has_passed(
        self, here: Mapping[int, WatchedRank], elsewhere: Mapping[int, int] | None, now_ns: int
    ) -> bool:
        """Whether all remaining culprits have advanced since the alarm was raised.

        If their nodes are silent and no culprit is seen, this node's victims count. Ranks must
        advance for `SETTLED_NS`: ranks that are asked to end advance, too.
        """
        current = self.verdict
        alive = {rank: watched for rank, watched in here.items() if watched.process_exit is None}
        seen = {rank: watched.progress.last_progress_ns for rank, watched in alive.items()}
        seen = {**(elsewhere or {}), **seen}
        culprits = current.culprits if current is not None else ()
        asked = [rank for rank in culprits if rank in seen]
        if current is not None and elsewhere is not None and not here.keys() & culprits:
            asked = asked or [rank for rank in current.victims if rank in alive]
        if not asked or any(seen[rank] <= self._raised_ns for rank in asked):
            self.advances_since_ns = 0
            return False
        self.advances_since_ns = self.advances_since_ns or now_ns
        return now_ns - self.advances_since_ns >= SETTLED_NS

    def stalled_s(self, now_ns: int) -> float:
        """Return for how many seconds the job has stalled, by our own clock; 0 if it moves."""
        current = self.verdict
        if current is None or current.stalled_since is None or current.verdict == "slow":
            return 0.0
        return current.stalled_for_s + (now_ns - self._raised_ns) / NANOSECONDS

    def recovered(self, detected_at: str, since_ns: int) -> Verdict | None:
        """Return the verdict that ends the alarm, for culprits that advance since ``since_ns``."""
        before_s = self.verdict.stalled_for_s if self.verdict is not None else 0.0
        return self.ended(detected_at, before_s + (since_ns - self._raised_ns) / NANOSECONDS)

    def ended(self, detected_at: str, silent_for_s: float) -> Verdict | None:
        """End the alarm and return the verdict that says so; None if there was no alarm."""
        raised, self.verdict = self.verdict, None
        if raised is None:
            return None
        called_s = max(0.0, silent_for_s - self._silent_before_s)
        return replace(
            raised,
            verdict="recovered",
            detected_at=detected_at,
            stalled_for_s=round(silent_for_s, 3),
            remedies=(),
            evidence=tuple(item for item in raised.evidence if item.kind != "lost"),
            summary=f"moves again, was {CALLED[raised.verdict]} for {duration(called_s)} (silent "
            f"for {duration(silent_for_s)}); what was seen: {raised.summary}",
        )

    def reminder(self, now_ns: int, *, wanted: bool = True) -> float | None:
        """Return for how many seconds the alarm stands after 2, 4, 8... minutes; None between."""
        kind = self.verdict.verdict if self.verdict is not None and wanted else None
        if kind != self._reminded_kind:
            self._reminded_kind, self._kind_since_ns = kind, now_ns
            self._remind_after_s = FIRST_REMINDER_S
        stood_s = (now_ns - self._kind_since_ns) / NANOSECONDS
        if kind is None or stood_s < self._remind_after_s:
            return None
        while self._remind_after_s <= stood_s:
            self._remind_after_s *= 2
        return stood_s


class Shutdown:
    """Whether the job is shutting down: what ranks do then is neither a recovery nor a new hang."""

    def __init__(self) -> None:
        self.asked: AskedEnd | None = None
        self.asked_ns = 0
        self._shown = False
        self._steps: dict[int, int | None] = {}
        self._gone: frozenset[int] = frozenset()

    @property
    def was_asked(self) -> bool:
        """Whether somebody asked for the end; a signal that only ranks show does not count."""
        return self.asked is not None and not self._shown

    def ask(self, by: str, ranks: Sequence[RankView], suspected: str, now_ns: int) -> None:
        """Record that somebody asks the job to end; the first request counts."""
        shown, self._shown = self._shown, False
        if self.asked is not None:
            if shown and now_ns - self.asked_ns < LAUNCHER_TOLD_NS:
                self.asked = replace(self.asked, by=by)
            return
        before = tuple(view.rank for view in ranks if failed(view) and not ended_from_outside(view))
        self.asked = AskedEnd(by=by, failed_before=before, suspected=suspected)
        self.asked_ns = now_ns
        self._steps = {}

    def end_round(self) -> AskedEnd | None:
        """Forget a request that only the ended round's ranks showed; return any other."""
        if self._shown:
            self.asked = None
        return self.asked

    def hang_proven(self, ranks: Sequence[RankView]) -> None:
        """Remember which ranks were gone when the hang was proven: further exits mean the end."""
        self._gone = frozenset(view.rank for view in ranks if view.process_exit is not None)

    def begun(
        self, ranks: Sequence[RankView], *, proven: bool, suspected: str = "", now_ns: int
    ) -> bool:
        """Whether the job is shutting down: it was asked to, or its ranks show it."""
        if self.asked is not None and now_ns - self.asked_ns >= OBEYED_WITHIN_S * NANOSECONDS:
            steps = {view.rank: view.beat.step for view in ranks if view.beat is not None}
            self._steps = self._steps or steps
            if steps != self._steps:  # new steps, long after the request
                self.asked = None
        if self.asked is not None:
            return True
        by = shown_by(ranks)
        if by is not None:
            self.ask(by, ranks, suspected, now_ns)
            self._shown = True
            return True
        others = [view for view in ranks if proven and view.rank not in self._gone]
        return any(view.process_exit is not None or asked_by(view) for view in others)
