"""When nodes that meet in a store go on in a folder as well. Pure.

They never leave the store for it: who moved tells and takes words in both, as far as they answer,
and stays so. A store that failed once may do so again, each change costs seconds of deafness, and
two nodes that find any place in common hear each other so, whichever of them moved, and when.
"""

from __future__ import annotations

MOVED_AFTER_S = 5.0
"""Trouble with a place that had answered before; a busy one repeats within a second or two."""
NEVER_ANSWERED_S = 60.0
"""The first node may start so much later than the others, and its store with it."""


class Moving:
    """Whether this node uses the folder."""

    def __init__(self) -> None:
        self.moved = False
        self._answered = False
        self._trouble_since_s: float | None = None

    def look(
        self, now_s: float, *, trouble: bool, answered: bool, others: bool, ends: bool
    ) -> bool:
        """Look at the store, and return whether the folder is to be used from now on.

        Args:
            now_s: Present time, monotonic.
            trouble: The store was not to be used when last tried.
            answered: It was to be used once.
            others: Another node was seen to have moved.
            ends: The job is ending: who waits now is not heard any more.
        """
        self._answered = self._answered or answered
        if not trouble:
            self._trouble_since_s = None
        elif self._trouble_since_s is None:
            self._trouble_since_s = now_s
        patience_s = MOVED_AFTER_S if self._answered else NEVER_ANSWERED_S
        since_s = self._trouble_since_s
        due = since_s is not None and (now_s - since_s >= patience_s or (ends and self._answered))
        self.moved = self.moved or others or due
        return self.moved
