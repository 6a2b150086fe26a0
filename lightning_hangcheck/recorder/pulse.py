"""The pulse: a thread that shows whether the interpreter of this process still turns."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.machine.own_thread import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.recorder.page_writer import PageWriter
    from lightning_hangcheck.recorder.sidecar_watch import SidecarWatch

INTERVAL_S = 0.5


class Pulse:
    """Writes the clock to the page twice a second and looks after the sidecar.

    Args:
        page: Of this process.
        watch: Looks after the sidecar.
        errand: What else is to be done at each pulse.
        ranks: That start one on this machine.

    Raises:
        NoRoom: There is none for its thread.
    """

    def __init__(
        self, page: PageWriter, watch: SidecarWatch, errand: Callable[[], None], ranks: int
    ) -> None:
        self._page = page
        self._watch = watch
        self._errand = errand
        self._stop = threading.Event()
        self._thread = start_thread(self._run, "hangcheck-pulse", ranks)
        page.pulse()

    def stop(self, limit_s: float) -> None:
        """End the thread; wait for it at most so many seconds."""
        self._stop.set()
        self._thread.join(limit_s)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._page.pulse()
            self._do("the sidecar is no longer looked after", self._watch.look)
            self._do("torch's flight record is not offered", self._errand)

    def _do(self, otherwise: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it runs the hooks' callback; the pulse must go on
            log.once(otherwise, f"{otherwise}: {error!r}")
