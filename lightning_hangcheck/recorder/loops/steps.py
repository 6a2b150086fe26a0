"""Named steps of any loop: ``with step("get observation"):``, or a plain call of it.

How long the steps of a loop took: count, total, longest.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.recorder.sections import OpenedSection

if TYPE_CHECKING:
    from lightning_hangcheck.recorder.lifecycle import Recorder


MOST_NAMES = 64
"""Names that are kept apart; a name with a number in it would else fill the memory."""
OTHERS = "others"
MOST_SHOWN = 6


class Times(Struct):
    """Durations of one kind of step, in seconds."""

    count: int = 0
    total_s: float = 0.0
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Take one more."""
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def join(self, other: Times) -> None:
        """Take all of another's."""
        self.count += other.count
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    def __str__(self) -> str:
        return f"{self.count}x, {self.total_s:.3g} s in all, longest {self.longest_s:.3g} s"


class StepTimes:
    """Durations by the name of the step, in the order in which they first came."""

    def __init__(self) -> None:
        self.by_name: dict[str, Times] = {}

    def of(self, name: str) -> Times:
        """The times of this step, begun if it is new."""
        found = self.by_name.get(name)
        if found is None:
            name = name if len(self.by_name) < MOST_NAMES else OTHERS
            found = self.by_name.setdefault(name, Times())
        return found

    def join(self, other: StepTimes) -> None:
        """Take all of another's."""
        for name, times in other.by_name.items():
            self.of(name).join(times)

    def __str__(self) -> str:
        """The steps that took most, for example ``; get observation 41x, ...``."""
        most = sorted(self.by_name.items(), key=lambda one: -one[1].total_s)
        shown = "".join(f"; {name} {times}" for name, times in most[:MOST_SHOWN])
        return shown + ("; ..." if len(most) > MOST_SHOWN else "")


class Scope:
    """What a step lies in: a loop, a step around it, or the thread.

    Attributes:
        times: Where the durations go.
        plain: The step begun in here without ``with``, which the next one ends.
    """

    __slots__ = ("plain", "times")

    def __init__(self, times: StepTimes) -> None:
        self.times = times
        self.plain: Step | None = None

    def end_plain(self) -> None:
        """End the step that nobody else ends."""
        if self.plain is not None:
            self.plain.end()
            self.plain = None


class _Scopes(threading.local):
    """The scopes of each thread, outermost first."""

    def __init__(self) -> None:
        self.stack = [Scope(StepTimes())]


_scopes = _Scopes()


def scopes() -> list[Scope]:
    """The scopes that this thread is in; the first is the thread itself."""
    return _scopes.stack


class _Stay(Struct, eq=False):
    """One time that a step is in.

    Attributes:
        scope: What it lies in.
        opened: Its place on the page, None if nobody records.
        inner: The scope that it is to steps within it, once it is entered by ``with``.
    """

    scope: Scope
    opened: OpenedSection | None
    began: float
    inner: Scope | None = None


class Step:
    """One step, begun when it is made.

    As a context manager it ends with its block. Without ``with`` it ends where the next step
    begins, or with the item of the loop around it.
    """

    __slots__ = ("_name", "_recorder", "_stack", "_stays")

    def __init__(self, recorder: Recorder, name: str) -> None:
        self._recorder = recorder
        self._name = name
        self._stack = scopes()
        self._stays: list[_Stay] = []
        self._begin()
        self._stack[-1].plain = self

    def __enter__(self) -> None:
        last = self._stays[-1] if self._stays else None
        if last is not None and last.scope.plain is self:
            last.scope.plain = None
        else:  # entered once more: a step that is over begins anew, one that goes on nests
            last = self._begin()
        last.inner = Scope(last.scope.times)
        self._stack.append(last.inner)

    def __exit__(self, *_: object) -> None:
        inner = self._stays[-1].inner if self._stays else None
        if inner is not None:
            inner.end_plain()
            if inner in self._stack:
                self._stack.remove(inner)
        self.end()

    def end(self) -> None:
        """Say that it is over, and take its time."""
        if not self._stays:
            return
        stay = self._stays.pop()
        if stay.opened is not None:
            self._recorder.close_section(stay.opened, None)
        self._recorder.beat()
        stay.scope.times.of(self._name).add(perf_counter() - stay.began)

    def _begin(self) -> _Stay:
        scope = self._stack[-1]
        scope.end_plain()
        self._recorder.beat()
        opened = self._recorder.open_section(self._name, spoken=False)
        self._stays.append(_Stay(scope, opened, perf_counter()))
        return self._stays[-1]
