"""Is the sidecar that watches us still there, and may it read us?"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.process_stat import is_alive
from lightning_hangcheck.rundir.session import read_sidecar

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.rundir.session import SidecarFacts

YAMA_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
# linux/prctl.h: "Yama" in ASCII
_PR_SET_PTRACER = 0x59616D61


class SidecarWatch:
    """Looks at the sidecar that the session names; called twice a second by the pulse thread.

    A sidecar that leaves on purpose removes its file first, so only one that was killed is missed.

    Args:
        file: The session's ``sidecar.json``.
        on_lost: Called with the process id of a sidecar that is gone, once for each.
        patience_s: Asked for the seconds that whoever keeps the sidecar has to put a new one in
            its place: one that is replaced by then is not missed.
    """

    def __init__(
        self, file: Path, on_lost: Callable[[int], None], patience_s: Callable[[], float]
    ) -> None:
        self._file = file
        self._on_lost = on_lost
        self._patience_s = patience_s
        self._known: SidecarFacts | None = None
        self._gone_since: float | None = None
        self._lost: SidecarFacts | None = None

    def look(self) -> None:
        """Look once, about 50 microseconds."""
        named = read_sidecar(self._file)
        if named is None or named == self._lost:
            return
        if named != self._known:
            self._known = named
            self._gone_since = None
            if yama_asks_for_a_name():
                allow_to_read(named.pid)
        if is_alive(named.pid, named.started_ticks):
            return
        now = time.monotonic()
        self._gone_since = self._gone_since or now
        if now - self._gone_since >= self._patience_s():
            self._lost = named
            self._on_lost(named.pid)


def yama_asks_for_a_name() -> bool:
    """Whether only an ancestor, or a process that we name, may read this process's memory.

    That is Yama's ptrace_scope 1, the default of Ubuntu (Documentation/admin-guide/LSM/Yama.rst).
    """
    try:
        return YAMA_SCOPE.read_text().strip() == "1"
    except OSError:  # a kernel without Yama
        return False


def allow_to_read(pid: int) -> bool:
    """Let one process, and its children such as py-spy, read this one.

    Returns:
        Whether the kernel took it; one without Yama does not, and does not need to.
    """
    import ctypes  # 5 ms that only a kernel with Yama costs, and there the pulse thread

    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    numbers = (ctypes.c_ulong(number) for number in (pid, 0, 0, 0))
    return int(prctl(_PR_SET_PTRACER, *numbers)) == 0
