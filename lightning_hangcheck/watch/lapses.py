"""Times in which nobody watched: the sidecar was stopped or starved, or its whole job stood."""

from __future__ import annotations

from lightning_hangcheck import log
from lightning_hangcheck.model.evidence import Gap
from lightning_hangcheck.text.moments import NANOSECONDS

LAPSE_S = 2.0
"""A reading that comes this much late means that we were stopped or starved, not the ranks."""
STARVED = (
    "the sidecar was not run for seconds on end (an overloaded machine, or it was stopped): "
    "silence of that time does not count, so what is told comes later"
)


class Lapses:
    """Counts them from reading to reading.

    Args:
        now_ns: Present time, monotonic.
    """

    def __init__(self, now_ns: int) -> None:
        self._read_ns = now_ns
        self._starved_ns = 0

    def read(self, now_ns: int, *, suspended: bool) -> int:
        """Take down a reading.

        Args:
            now_ns: When.
            suspended: Somebody stopped the whole job with its launcher.

        Returns:
            Nanoseconds since the one before that count for no rank.
        """
        lapse_ns = now_ns - self._read_ns
        self._read_ns = now_ns
        if lapse_ns <= LAPSE_S * NANOSECONDS:
            return lapse_ns if suspended else 0
        self._starved_ns += lapse_ns
        log.once("starved", STARVED)
        return lapse_ns

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What could not be seen because of them."""
        if not self._starved_ns:
            return ()
        what = f"{self._starved_ns / NANOSECONDS:.0f} s of the job"
        return (Gap(what, None, STARVED, "watcher"),)
