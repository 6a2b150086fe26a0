"""Is there another node with this one's number? By what stands where this one alone tells. Pure."""

from __future__ import annotations

from collections import deque

LASTS_S = 10.0
"""While torchrun numbers its nodes anew, two of them may have one number for a second or two."""
PAUSE_S = 5.0
"""Each node tells something each second."""
FEWEST = 4
"""Words of another one: some of them are written over before they are seen."""
KEPT = 32
"""Words of ours: storage that is slow may show an older one again."""


class SameNumber:
    """Looks at the word of one's own node before the next one is left in its place.

    Attributes:
        found: The newest word of another one, once it is plain that there is one.
    """

    def __init__(self) -> None:
        self._ours: deque[int] = deque(maxlen=KEPT)
        self._seen: bytes | None = None
        self._count = 0
        self._since_s = self._last_s = 0.0
        self.found: bytes | None = None

    def look(self, data: bytes | None, now_s: float) -> None:
        """Take what stands there; what somebody had left before our first word counts as nothing.

        Args:
            data: None where nothing does.
            now_s: Present time, monotonic.
        """
        if data in (None, self._seen) or not self._ours or hash(data) in self._ours:
            return
        if now_s - self._last_s > PAUSE_S:
            self._since_s, self._count = now_s, 0
        self._seen, self._last_s, self._count = data, now_s, self._count + 1
        if self._count >= FEWEST and now_s - self._since_s >= LASTS_S:
            self.found = data

    def told(self, data: bytes) -> None:
        """Note what this node leaves there now."""
        self._ours.append(hash(data))
