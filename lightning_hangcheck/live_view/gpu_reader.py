"""What the ranks' GPUs do, asked beside the view: the driver may take its time, or never answer."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.look.gpu import Gpus, gpus_of

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY_S = 10.0
"""Asking takes a process of its own and a tenth of a second: 1 % of a core."""
ANSWER_LIMIT_S = 5.0


class GpusNow(NamedTuple):
    """As told last: GPUs by process id, and why some are not told."""

    by_pid: Gpus
    gaps: tuple[str, ...]


class GpuReader:
    """Asks for GPUs now and then, in a thread; where there is no driver it does nothing."""

    def __init__(self) -> None:
        self._newest = GpusNow({}, ())
        self._asking: threading.Thread | None = None
        self._ask_again_at = 0.0

    def read(self, pids: Sequence[int]) -> GpusNow:
        """Return what was told last, at once.

        Args:
            pids: Of the ranks, for the next answer.
        """
        free = self._asking is None or not self._asking.is_alive()
        if pids and free and time.monotonic() >= self._ask_again_at:
            self._ask_again_at = time.monotonic() + EVERY_S
            self._asking = threading.Thread(
                target=self._ask, args=(tuple(pids),), name="hangcheck-gpus", daemon=True
            )
            self._asking.start()
        return self._newest

    def _ask(self, pids: tuple[int, ...]) -> None:
        found, gaps = gpus_of(pids, ANSWER_LIMIT_S)
        self._newest = GpusNow(found or {}, tuple(f"{gap.what}: {gap.reason}" for gap in gaps))
