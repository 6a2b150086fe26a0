"""When an alarm that stands is told again: after 2, 4, 8... minutes. Pure: time is a parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.naming.slugs import VerdictKind

FIRST_AFTER_S = 120.0
"""Each later one after twice the time: a night of ten hours has nine."""


class Reminders:
    """The reminders of one alarm; a verdict of another kind begins anew."""

    def __init__(self) -> None:
        self._kind: VerdictKind | None = None
        self._since_ns = 0
        self._after_s = FIRST_AFTER_S

    def due(self, kind: VerdictKind | None, now_ns: int) -> float | None:
        """Ask whether it is time for one.

        Args:
            kind: Of the verdict that stands; None while all is calm, or nobody is to be reminded.
            now_ns: Monotonic nanoseconds.

        Returns:
            For how many seconds that verdict has stood, None while no reminder is due.
        """
        if kind != self._kind:
            self._kind, self._since_ns, self._after_s = kind, now_ns, FIRST_AFTER_S
        stood_s = (now_ns - self._since_ns) / NANOSECONDS
        if kind is None or stood_s < self._after_s:
            return None
        while self._after_s <= stood_s:
            self._after_s *= 2
        return stood_s
