"""A warning while something still runs, from a thread of its own."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lightning_hangcheck.hooks.pretrained.attempt import attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType


class LongRun:
    """``with LongRun(300.0, warn):`` calls ``warn`` once if the block takes longer than that.

    Args:
        after_s: Seconds.
        warn: Called in another thread, which a process need not wait for at its end.
    """

    def __init__(self, after_s: float, warn: Callable[[], None]) -> None:
        seconds = min(after_s, threading.TIMEOUT_MAX)
        self._timer = threading.Timer(seconds, attempt, ("the warning of a long run", warn))
        self._timer.daemon = True

    def __enter__(self) -> None:
        attempt("the timer of a long run", self._timer.start)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._timer.cancel()
