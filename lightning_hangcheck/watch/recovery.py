"""Whether the ranks that an alarm names advance again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.model.verdict import Verdict
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
        here: Mapping[int, WatchedRank],
        elsewhere: Mapping[int, int] | None,
        now_ns: int,
    ) -> bool:
        """Wait a little after the first progress: it may be that of ranks that are asked to end.

        Args:
            standing: The verdict that stands.
            here: Ranks of this node, those whose process is gone included.
            elsewhere: When ranks of other nodes advanced last; None for a job of one node.
            now_ns: Present time.
        """
        if not advanced(standing, self._raised_ns, here, elsewhere):
            self.since_ns = 0
            return False
        self.since_ns = self.since_ns or now_ns
        return now_ns - self.since_ns >= SETTLED_NS

    def silence_s(self, standing: Verdict | None, since_ns: int) -> float:
        """Return for how long ranks that advance since a moment had been silent, seconds."""
        before_s = standing.stalled_for_s if standing is not None else 0.0
        return before_s + (since_ns - self._raised_ns) / NANOSECONDS


def advanced(
    standing: Verdict | None,
    raised_ns: int,
    here: Mapping[int, WatchedRank],
    elsewhere: Mapping[int, int] | None,
) -> bool:
    """Whether all culprits that are left have advanced since a verdict was raised.

    Where none of them is seen anywhere, as their node is silent: whether those have that waited for
    them here.

    Args:
        standing: The verdict, None where none stands.
        raised_ns: When that was.
        here: Ranks of this node, those whose process is gone included.
        elsewhere: When ranks of other nodes advanced last; None for a job of one node.
    """
    alive = {rank: one for rank, one in here.items() if one.process_exit is None}
    seen = dict(elsewhere or {}) | {r: one.progress.last_progress_ns for r, one in alive.items()}
    culprits = standing.culprits if standing is not None else ()
    asked = [rank for rank in culprits if rank in seen]
    if standing is not None and elsewhere is not None and not here.keys() & culprits and not asked:
        asked = [rank for rank in standing.victims if rank in alive]
    return bool(asked) and all(seen[rank] > raised_ns for rank in asked)
