"""Whether the ranks that an alarm names advance again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.watch.other_nodes.among_nodes import AmongNodes
    from lightning_hangcheck.watch.ranks.watched_rank import WatchedRank

SETTLED_NS = 3 * NANOSECONDS
"""Time for which a rank must have advanced before that is called a recovery. On Ctrl-C a Python
program ends within a second, and its launcher's word comes within a tenth."""


class Recovery:
    """The moment of the newest alarm, and what its ranks did since."""

    def __init__(self) -> None:
        self._raised_ns = 0
        self.since_ns = 0

    def raised(self, now_ns: int) -> None:
        """Start afresh: an alarm was told."""
        self._raised_ns, self.since_ns = now_ns, 0

    def forgive(self, lapse_ns: int, now_ns: int) -> None:
        """Move along with what is forgiven, which would else look like progress since."""
        self._raised_ns = min(self._raised_ns + lapse_ns, now_ns)

    def has_come(
        self,
        standing: Verdict | None,
        alive: Sequence[WatchedRank],
        nodes: AmongNodes | None,
        now_ns: int,
    ) -> bool:
        """Wait a little after the first progress: it may be that of ranks that are asked to end.

        Args:
            standing: The verdict that stands.
            alive: Ranks of this node.
            nodes: The job's other nodes, where there are any.
            now_ns: Present time.
        """
        culprits = standing.culprits if standing is not None else ()
        advanced = self._advanced(culprits, alive)
        if nodes is not None:
            there = nodes.elsewhere(now_ns)
            advanced += [there[rank] > self._raised_ns for rank in culprits if rank in there]
            # of ranks that nobody sees tell those that waited for them
            advanced = advanced or self._advanced(standing.victims if standing else (), alive)
        if not advanced or not all(advanced):
            self.since_ns = 0
            return False
        self.since_ns = self.since_ns or now_ns
        return now_ns - self.since_ns >= SETTLED_NS

    def silence_s(self, standing: Verdict | None, since_ns: int) -> float:
        """Return for how long ranks that advance since a moment had been silent, seconds."""
        before_s = standing.stalled_for_s if standing is not None else 0.0
        return before_s + (since_ns - self._raised_ns) / NANOSECONDS

    def _advanced(self, ranks: Sequence[int], alive: Sequence[WatchedRank]) -> list[bool]:
        there = (one for one in alive if one.found.rank in ranks)
        return [one.progress.last_progress_ns > self._raised_ns for one in there]
