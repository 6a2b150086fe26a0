"""Loops that users write themselves: steps, tracked iterables, progress bars."""

from __future__ import annotations

import sys
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import clean_name
from lightning_hangcheck.recorder.sections import OpenedSection
from lightning_hangcheck.text.shown import seconds_in_words, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

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


Item = TypeVar("Item")
Bar = Literal["rich", "tqdm", "off"]


class Track(Generic[Item]):
    """An iterable whose items are counted, timed and shown; the items are the very same objects."""

    def __init__(
        self,
        recorder: Recorder,
        iterable: Iterable[Item],
        name: str,
        total: int | None,
        bar: Bar,
        *,
        say: bool = False,
    ) -> None:
        self._recorder = recorder
        self._iterable = iterable
        self._name = name
        self._total = _length(iterable) if total is None else total
        self._bar = bar
        self._says = say or recorder.settings.steps

    def __len__(self) -> int:
        """Raises TypeError where the length is not known, as the iterable itself would."""
        if self._total is None:
            raise TypeError(f"the length of the loop {self._name!r} is not known")
        return self._total

    def __iter__(self) -> Generator[Item, None, None]:
        if self._recorder.settings.disable:
            yield from self._iterable
            return
        loop = _Loop(self._recorder, self._name, self._total, self._bar, says=self._says)
        try:
            for item in self._iterable:
                loop.next_item()
                yield item
            loop.whole = True
        finally:
            loop.end()


class _Loop(Scope):
    """One passage through a tracked loop."""

    __slots__ = (
        "_all",
        "_bar",
        "_began",
        "_item_began",
        "_items",
        "_name",
        "_opened",
        "_recorder",
        "_says",
        "_stack",
        "whole",
    )

    def __init__(
        self, recorder: Recorder, name: str, total: int | None, bar: Bar, *, says: bool
    ) -> None:
        super().__init__(StepTimes())
        self.whole = False
        self._says = says
        self._recorder = recorder
        self._name = name
        self._stack = scopes()
        draws = self._is_outermost and recorder.identity.rank in (None, 0)
        self._bar = open_bar(bar if draws else "off", name, total)
        self._items = Times()
        self._all = StepTimes()
        recorder.leave_startup()
        self._opened = recorder.open_section(name, spoken=False)
        self._stack.append(self)
        self._began = self._item_began = perf_counter()

    @property
    def _is_outermost(self) -> bool:
        return not any(isinstance(scope, _Loop) for scope in self._stack if scope is not self)

    def next_item(self) -> None:
        """The last item is done, and the next one there; its time includes waiting for it."""
        self._end_item()
        self.number += 1
        self._recorder.beat()
        if self._opened is not None:
            self._recorder.advance(self._opened, self.number)

    def end(self) -> None:
        """The loop was left: at its end, by break or return, or by an exception."""
        self._end_item()
        if self in self._stack:
            self._stack.remove(self)
        if self._opened is not None:
            self._recorder.close_section(self._opened, None)
        self._bar.close()
        seconds = perf_counter() - self._began
        self._all.join(self.times)
        if self._is_outermost:
            self._say(seconds)
        else:
            self._stack[-1].times.of(self._name).add(seconds)
            self._stack[-1].times.join(self._all)

    def _end_item(self) -> None:
        self.end_plain()
        now = perf_counter()
        if self.number:
            self._items.add(now - self._item_began)
            self._bar.advance(now)
            if self._says:
                self._say_item(now - self._item_began)
        self._item_began = now

    def _say_item(self, seconds: float) -> None:
        """Say one item, and what took most of it; its steps go over to those of the whole loop."""
        self._recorder.say(f"{self._name} {self.number}: {seconds_in_words(seconds)}{self.times}")
        self._all.join(self.times)
        self.times = StepTimes()

    def _say(self, seconds: float) -> None:
        ended = "" if self.whole else " (left early)"
        slowest = f", longest {seconds_in_words(self._items.longest_s)}" if self.number else ""
        took = seconds_in_words(seconds)
        self._recorder.say(
            f"{self._name}: {self.number} items in {took}{ended}{slowest}{self._all}"
        )
        self._recorder.note(
            "track",
            name=self._name,
            seconds=seconds,
            whole=self.whole,
            items=asdict(self._items),
            steps={name: asdict(times) for name, times in self._all.by_name.items()},
        )


def _length(iterable: object) -> int | None:
    """The number of items, None where it is not known or its ``__len__`` fails."""
    try:
        return len(iterable)  # type: ignore[arg-type] # whether it has one is the question
    except Exception:  # noqa: BLE001 - a user's __len__ may raise anything, and the loop needs it not
        return None


PAUSE_S = 0.1
"""Least seconds between two drawings."""


class ProgressBar(Protocol):
    """What a loop tells its bar."""

    def advance(self, now_s: float) -> None:
        """One more item is done; draw if it is time."""

    def close(self) -> None:
        """The loop was left."""


class Drawn(Protocol):
    """What rich's and tqdm's bars are made to."""

    def show(self, done: int) -> None:
        """Draw it with so many items done."""

    def close(self) -> None:
        """Take it off the screen."""


class NoBar:
    """Draws nothing."""

    def advance(self, now_s: float) -> None:
        """Nothing to draw."""

    def close(self) -> None:
        """Nothing to end."""


class _Painted:
    """A bar of rich or tqdm. It is theirs to draw, so any failure of it only ends the drawing."""

    def __init__(self, bar: Drawn) -> None:
        self._bar = bar
        self._done = 0
        self._drawn_s = 0.0

    def advance(self, now_s: float) -> None:
        self._done += 1
        if now_s - self._drawn_s >= PAUSE_S:
            self._drawn_s = now_s
            self._draw()

    def close(self) -> None:
        self._draw()
        self._attempt(lambda: self._bar.close())

    def _draw(self) -> None:
        self._attempt(lambda: self._bar.show(self._done))

    def _attempt(self, drawing: Callable[[], None]) -> None:
        try:
            drawing()
        except Exception as error:  # noqa: BLE001 - a terminal that went away must not end the loop
            log.once("progress bar", f"the progress bar is off: {error!r}")
            self._bar = _NOTHING


class _Nothing:
    def show(self, done: int) -> None:
        """Draws nothing."""

    def close(self) -> None:
        """Ends nothing."""


_NOTHING = _Nothing()


class _Rich:
    """rich's bar, drawn by us: its own thread would run in every process forked from here."""

    def __init__(self, name: str, total: int | None) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import Progress

        self._progress = Progress(
            console=Console(stderr=True), auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._task = self._progress.add_task(escape(name), total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)
        self._progress.refresh()

    def close(self) -> None:
        self._progress.stop()


class _Tqdm:
    def __init__(self, name: str, total: int | None) -> None:
        from tqdm import tqdm

        self._bar = tqdm(desc=name, total=total, file=sys.stderr, mininterval=0, leave=False)

    def show(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def open_bar(kind: Bar, name: str, total: int | None) -> ProgressBar:
    """Open a bar, or one that draws nothing where there is no terminal or it cannot be drawn."""
    if kind == "off" or not _is_terminal():
        return NoBar()
    shown = clean_name(name)
    try:
        return _Painted(_Tqdm(shown, total) if kind == "tqdm" else _Rich(shown, total))
    except Exception as error:  # noqa: BLE001 - another live display or a missing tqdm: no bar then
        log.once("progress bar", f"no progress bar: {error!r}")
        return NoBar()


def _is_terminal() -> bool:
    """Whether stderr is one; a program may have closed it or put its own object there."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False
