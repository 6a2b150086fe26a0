"""Named steps of any loop: ``with step("get observation"):``, or a plain call of it.

How long the steps of a loop took: count, total, longest.
"""

from __future__ import annotations

import threading
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.recorder.sections import OpenedSection
from lightning_hangcheck.text.amounts import seconds_in_words
from lightning_hangcheck.text.plain_text import text_of

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        total = seconds_in_words(self.total_s)
        if self.count == 1:
            return total
        return f"{self.count}x, {total} in all, longest {seconds_in_words(self.longest_s)}"


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
        number: Of a step in here: that of the loop's item or of the step around. The thread itself
            counts its steps.
        plain: The step begun in here without ``with``, which the next one ends.
    """

    __slots__ = ("number", "plain", "times")

    def __init__(self, times: StepTimes, number: int = 0) -> None:
        self.times = times
        self.number = number
        self.plain: Step | None = None

    def count_step(self) -> None:
        """Take notice of one more step: within a loop or step it has the number of that."""

    def end_plain(self) -> None:
        """End the step that nobody else ends."""
        if self.plain is not None:
            self.plain.end()
            self.plain = None


class _Thread(Scope):
    """The outermost scope: steps in no loop."""

    def count_step(self) -> None:
        self.number += 1


class _Scopes(threading.local):
    """The scopes of each thread, outermost first."""

    def __init__(self) -> None:
        self.stack: list[Scope] = [_Thread(StepTimes())]


_scopes = _Scopes()


def scopes() -> list[Scope]:
    """The scopes that this thread is in; the first is the thread itself."""
    return _scopes.stack


class _Stay(Struct, eq=False):
    """One time that a step is in.

    Attributes:
        scope: What it lies in.
        opened: Its place on the page, None if nobody records.
        number: As it is said.
        inner: The scope that it is to steps within it, once it is entered by ``with``.
    """

    scope: Scope
    opened: OpenedSection | None
    began: float
    number: int
    inner: Scope | None = None


class Step:
    """One step, begun when it is made.

    As a context manager it ends with its block. Without ``with`` it ends where the next step
    begins, or with the item of the loop around it.

    Args:
        recorder: Of this process.
        name: The same one each time.
        values: What is said of it, beside its name.
        say: Whether to print a line when it ends; the option ``steps`` says so for all.
    """

    __slots__ = ("_name", "_recorder", "_says", "_stack", "_stays", "_values")

    def __init__(
        self, recorder: Recorder, name: str, values: Mapping[str, object], *, say: bool
    ) -> None:
        self._recorder = recorder
        self._name = name
        self._values = dict(values)
        self._says = say or recorder.settings.steps
        self._stack = scopes()
        self._stays: list[_Stay] = []
        self._begin()
        self._stack[-1].plain = self

    def add(self, **values: object) -> None:
        """Say these, too, when it ends: what is known only later."""
        self._values.update(values)

    def __enter__(self) -> Step:
        last = self._stays[-1] if self._stays else None
        if last is not None and last.scope.plain is self:
            last.scope.plain = None
        else:  # entered once more: a step that is over begins anew, one that goes on nests
            last = self._begin()
        last.inner = Scope(last.scope.times, last.number)
        self._stack.append(last.inner)
        return self

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
        seconds = perf_counter() - stay.began
        stay.scope.times.of(self._name).add(seconds)
        if self._says:
            values = "".join(f", {name}={text_of(value)}" for name, value in self._values.items())
            self._recorder.say(
                f"step {stay.number}: {self._name}{values}, {seconds_in_words(seconds)}"
            )

    def _begin(self) -> _Stay:
        scope = self._stack[-1]
        scope.end_plain()
        self._recorder.beat()
        opened = self._recorder.open_section(self._name, spoken=False)
        scope.count_step()
        self._stays.append(_Stay(scope, opened, perf_counter(), scope.number))
        return self._stays[-1]
