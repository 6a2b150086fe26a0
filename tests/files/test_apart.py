"""Work that is given to a process of its own, which may stay behind, but not for ever."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import psutil
import pytest
from processes import until

from lightning_hangcheck.files import apart as module
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart

if TYPE_CHECKING:
    from pathlib import Path


def test_work_in_a_lock_that_nobody_gives_back_ends_some_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEFT_FOR_S", 1)
    locked, noted = threading.Lock(), tmp_path / "pid"
    locked.acquire()

    def work() -> None:
        noted.write_text(str(os.getpid()))
        locked.acquire()

    with pytest.raises(NoAnswerFromStorage):
        apart(0.2, work)
    pid = int(until(lambda: noted.is_file() and noted.read_text(), "the work to begin"))
    until(lambda: not psutil.pid_exists(pid), "the work to be ended")
