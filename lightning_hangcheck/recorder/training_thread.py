"""Which thread of this process trains, and how its training ends where the process goes on.

The end of a program is told as it exits. A process that serves others does not exit with its
training: an actor of Ray Train lives on until the last rank is done, and is killed then (ray 2.60,
train/v2/_internal/execution/worker_group/thread_runner.py, which also keeps what was raised). So
the end of the thread is taken for the end of the rank. How it ended its outermost call tells: at
which instruction it was left.
"""

from __future__ import annotations

import sys
import threading
from opcode import opname
from typing import TYPE_CHECKING

from lightning_hangcheck.model.code_owner import is_standard, only_serves, owner_of
from lightning_hangcheck.model.evidence import Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType


class TrainingEnd:
    """How training ended in a thread: whether its outermost call returned, and at which line."""

    def __init__(self, call: FrameType) -> None:
        code = call.f_code
        self.well = opname[code.co_code[call.f_lasti]].startswith("RETURN_")
        self.left_at = Frame(code.co_name, code.co_filename, call.f_lineno)


class TrainingThread:
    """The main thread; where that only serves others, the first one beside it that asks.

    So it is in an actor of Ray Train: see `only_serves`. What asks is user's code, or a hook that
    the training calls.
    """

    def __init__(self, on_end: Callable[[TrainingEnd], None]) -> None:
        self._on_end = on_end
        self._found: threading.Thread | None = None
        self._kept_by_thread = threading.local()

    @property
    def goes_on_beside(self) -> bool:
        """Whether it is not the main thread, and has not ended."""
        return self._found is not None and self._found.is_alive()

    def is_here(self) -> bool:
        """Whether the thread that calls trains; 0.1 microseconds in the main one."""
        if threading.get_ident() == threading.main_thread().ident:
            return True
        if self._found is None:
            self.begins_here()
        return self._found is threading.current_thread()

    def begins_here(self) -> bool:
        """Take the thread that calls for the one that trains, if it may be; whether it was none."""
        here, main = threading.current_thread(), threading.main_thread()
        if here is main or self.goes_on_beside:
            return False
        calls = sys._current_frames().get(main.ident or 0)  # noqa: SLF001
        serving = [(one.f_code.co_name, one.f_code.co_filename) for one in _outwards(calls)]
        if not only_serves(serving):
            return False
        self._found = here
        # the outermost call here that is not of what the main thread runs, which started it
        packages = {owner_of(file) for _, file in serving}
        for call in reversed(list(_outwards(sys._getframe()))):  # noqa: SLF001
            file = call.f_code.co_filename
            if not is_standard(file) and owner_of(file) not in packages:
                # what a thread keeps for itself is let go as it ends, by that thread
                self._kept_by_thread.farewell = _Farewell(call, self._on_end)
                break
        return True


class _Farewell:
    """Tells the end of the thread that keeps it."""

    def __init__(self, call: FrameType, tell: Callable[[TrainingEnd], None]) -> None:
        self._call = call
        self._tell = tell

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._tell(TrainingEnd(self._call))


def _outwards(call: FrameType | None) -> Iterator[FrameType]:
    while call is not None:
        yield call
        call = call.f_back
