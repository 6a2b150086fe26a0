"""Tracked loops: ``for item in track(items, "simulation"):``."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from msgspec.structs import asdict

from lightning_hangcheck.recorder.loops.progress_bar import open_bar
from lightning_hangcheck.recorder.loops.steps import Scope, StepTimes, Times, scopes
from lightning_hangcheck.text.amounts import seconds_in_words

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from lightning_hangcheck.recorder.lifecycle import Recorder

Item = TypeVar("Item")
Bar = Literal["rich", "tqdm", "off"]


class Track(Generic[Item]):
    """An iterable whose items are counted, timed and shown; the items are the very same objects.

    Args:
        recorder: Of this process.
        iterable: Any; its exceptions pass.
        name: Of the loop.
        total: Number of items for the bar; None asks ``len``, and unknown is fine.
        bar: Which progress bar; drawn by rank 0 on a terminal only.
        say: Whether to print a line for each item; the option ``steps`` says so for all.
    """

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
