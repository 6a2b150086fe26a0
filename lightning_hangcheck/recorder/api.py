"""What a training script calls: checkpoint, section, beat, and steps of its own loops."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from operator import index
from time import perf_counter
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.recorder.announcer import attempt, clean_name
from lightning_hangcheck.recorder.lifecycle import Recorder, Section, current, process_recorder
from lightning_hangcheck.text.shown import seconds_in_words, text_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

Item = TypeVar("Item")
LARGEST_NUMBER = 2**53  # every JSON reader holds whole numbers up to here exactly
MOST_NAMES = 64
"""Names that are kept apart; names that contain a number would otherwise fill the memory."""
OTHERS = "others"
MOST_SHOWN = 6


class Times:
    """Durations of one kind of step, in seconds."""

    def __init__(self, count: int = 0, total_s: float = 0.0, longest_s: float = 0.0) -> None:
        self.count, self.total_s, self.longest_s = count, total_s, longest_s

    def join(self, other: Times) -> None:
        """Add all of another's."""
        self.count += other.count
        self.total_s += other.total_s
        self.longest_s = max(self.longest_s, other.longest_s)

    def __str__(self) -> str:
        total = seconds_in_words(self.total_s)
        if self.count == 1:
            return total
        return f"{self.count}x, {total} in all, longest {seconds_in_words(self.longest_s)}"


class StepTimes(dict[str, Times]):
    """Durations by step name, in order of first use."""

    def join(self, other: Mapping[str, Times]) -> None:
        """Add all of another's; beyond `MOST_NAMES` names, durations go to "others"."""
        for name, times in other.items():
            room = name in self or len(self) < MOST_NAMES
            self.setdefault(name if room else OTHERS, Times()).join(times)

    def __str__(self) -> str:
        """The steps that took most, for example ``; get observation 41x, ...``."""
        most = sorted(self.items(), key=lambda item: -item[1].total_s)
        shown = "".join(f"; {name} {times}" for name, times in most[:MOST_SHOWN])
        return shown + ("; ..." if len(most) > MOST_SHOWN else "")


class Scope:
    """What contains a step: one pass through a tracked loop, an outer step, or the thread."""

    # ``number`` is the loop's item or the outer step's number; the thread itself counts its steps.
    # ``plain`` is the step begun in this scope without ``with``; the next step ends it.

    def __init__(self, times: StepTimes, number: int = 0, *, is_loop: bool = False) -> None:
        self.times, self.number, self.is_loop = times, number, is_loop
        self.plain: Step | None = None

    def end_plain(self) -> None:
        """End the step that was begun without ``with``."""
        if self.plain is not None:
            self.plain.end()
            self.plain = None


class _Scopes(threading.local):
    """The scopes of each thread, outermost first; the first is the thread itself."""

    def __init__(self) -> None:
        self.stack: list[Scope] = [Scope(StepTimes())]


_scopes = _Scopes()


class Step(Scope):
    """One step, begun when constructed; by ``with`` it is the scope of its inner steps."""

    _around: Scope

    def __init__(
        self, recorder: Recorder, name: str, values: Mapping[str, object], *, say: bool
    ) -> None:
        self._recorder, self._name, self._values = recorder, name, dict(values)
        self._says = say or recorder.settings.steps
        self._stack = _scopes.stack
        self._begin()
        self._around.plain = self

    def _begin(self) -> None:
        around = self._around = self._stack[-1]
        around.end_plain()
        self._recorder.beat()
        self._opened = self._recorder.open_section(self._name, spoken=False)
        if around is self._stack[0]:  # outside any loop the thread counts its steps
            around.number += 1
        super().__init__(around.times, around.number)
        self._say("calling {}")
        self._goes_on, self._began = True, perf_counter()

    def _say(self, said: str) -> None:
        if self._says:
            values = (f", {name}={text_of(value)}" for name, value in self._values.items())
            self._recorder.say(f"step {self.number}: {said.format(self._name + ''.join(values))}")

    def add(self, **values: object) -> None:
        """Add values that are known only later; they are printed at the end."""
        self._values.update(values)

    def __enter__(self) -> Step:
        if not self._goes_on:  # entered again
            self._begin()
        if self._around.plain is self:
            self._around.plain = None
        self._stack.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self in self._stack:
            self.end_plain()
            self._stack.remove(self)
        self.end()

    def end(self) -> None:
        """End the step and record its time."""
        if not self._goes_on:
            return
        self._goes_on = False
        if self._opened is not None:
            self._recorder.close_section(self._opened, None)
        self._recorder.beat()
        seconds = perf_counter() - self._began
        self.times.join({self._name: Times(1, seconds, seconds)})
        self._say(f"{{}} returned ({seconds_in_words(seconds)})")


Bar = Literal["rich", "tqdm", "off"]


class Track(Generic[Item]):
    """An iterable whose items are counted, timed and shown; the items themselves are unchanged."""

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
        self._recorder, self._iterable, self._name, self._bar = recorder, iterable, name, bar
        self._says, self._total = say or recorder.settings.steps, total
        if total is None:
            # a user's __len__ may raise anything, and the loop does not need it
            with suppress(Exception):
                self._total = len(iterable)  # type: ignore[arg-type] # whether it has one is the question

    def __len__(self) -> int:
        """Raise TypeError if the length is unknown, as the iterable itself would."""
        if self._total is None:
            raise TypeError(f"the length of the loop {self._name!r} is not known")
        return self._total

    def __iter__(self) -> Generator[Item, None, None]:
        recorder, name = self._recorder, self._name
        if recorder.settings.disable:
            yield from self._iterable
            return
        stack, loop = _scopes.stack, Scope(StepTimes(), is_loop=True)
        is_outermost = not any(scope.is_loop for scope in stack)
        draw = None
        if is_outermost and recorder.identity.rank in (None, 0) and sys.stderr.isatty():
            draw = attempt("the progress bar", _open_bar, self._bar, name, self._total)
        draw = draw or (lambda *_: None)
        items, steps, whole = Times(), StepTimes(), False
        recorder.leave_startup()
        opened = recorder.open_section(name, spoken=False)
        stack.append(loop)
        began = item_began = perf_counter()

        def end_item() -> None:
            nonlocal item_began
            loop.end_plain()
            before, item_began = item_began, perf_counter()
            if not loop.number:
                return
            seconds = item_began - before
            items.join(Times(1, seconds, seconds))
            attempt("the progress bar", draw, items.count, item_began)
            if self._says:  # with this item's longest steps, which then join the loop's
                recorder.say(f"{name} {loop.number}: {seconds_in_words(seconds)}{loop.times}")
                steps.join(loop.times)
                loop.times = StepTimes()

        try:
            for item in self._iterable:
                end_item()  # the previous item: an item's time includes waiting for the next
                loop.number += 1
                recorder.beat()
                if opened is not None:
                    recorder.advance(opened, loop.number)
                yield item
            whole = True
        finally:  # at its end, by break or return, or by an exception
            end_item()
            if loop in stack:
                stack.remove(loop)
            if opened is not None:
                recorder.close_section(opened, None)
            attempt("the progress bar", draw, items.count)
            seconds = perf_counter() - began
            steps.join(loop.times)
            if is_outermost:
                ended = "" if whole else " (left early)"
                longest = f", longest {seconds_in_words(items.longest_s)}" if loop.number else ""
                took = f"{loop.number} items in {seconds_in_words(seconds)}"
                recorder.say(f"{name}: {took}{ended}{longest}{steps}")
                recorder.note(
                    "track",
                    name=name,
                    seconds=seconds,
                    whole=whole,
                    items=vars(items),
                    steps={name: vars(times) for name, times in steps.items()},
                )
            else:
                stack[-1].times.join({name: Times(1, seconds, seconds), **steps})


def _open_bar(kind: Bar, name: str, total: int | None) -> Callable[..., None] | None:
    """Return what draws a bar, until it is called without the time."""
    if kind == "off":
        return None
    name = clean_name(name)
    if kind == "tqdm":
        from tqdm import tqdm

        drawn = tqdm(desc=name, total=total, leave=False)

        def count(done: int, now_s: float | None = None) -> None:
            drawn.update(done - drawn.n)
            if now_s is None:
                drawn.close()

        return count
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    # drawn by us: rich's own thread would be inherited by every forked process
    console = Console(stderr=True)
    bar = Progress(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
    task = bar.add_task(escape(name), total=total)
    bar.start()
    drawn_s = 0.0

    def show(done: int, now_s: float | None = None) -> None:
        nonlocal drawn_s
        if now_s is None or now_s - drawn_s >= 0.1:
            drawn_s = now_s or 0.0
            bar.update(task, completed=done, refresh=True)
        if now_s is None:
            bar.stop()

    return show


def checkpoint(name: str, number: int | None = None) -> None:
    """Report that this rank passed a named point: on the console, in the journal, to the sidecar.

    Up to 200 characters of the name are shown, with secrets hidden. The number is from 0 to 2**53,
    by default the last number plus 1. Takes under 10 microseconds; never raises, never waits.
    """
    if number is not None:
        number = _usable("checkpoint(number=...)", number)
    current().checkpoint(name, number)


def section(name: str) -> Section:
    """Mark code that may hang: prints a line before and after, and tells the sidecar.

    A context manager, named after what is called: ``"WandbLogger constructor"``. An exception that
    leaves the section is shown and propagates.
    """
    return Section(current(), name)


def step(name: str, /, *, say: bool = False, **values: object) -> Step:
    """Begin a named step of a loop: shown, timed and counted as a beat; printed only if asked for.

    ``with step("get observation"):`` ends with its block. A plain ``step("get observation")`` ends
    when the next step begins, or with the item of the surrounding tracked loop. Steps nest, take a
    few microseconds, and never raise by themselves. Durations are kept by name.

    ``say`` prints one line at the end, with number, values and time; ``HANGCHECK_STEPS=1`` does so
    for every step and every item of a tracked loop. For values known only later:
    ``with step("generate", say=True) as current: current.add(tokens=128)``.
    """
    return Step(current(), text_of(name), values, say=say)


def track(
    iterable: Iterable[Item],
    name: str = "loop",
    *,
    total: int | None = None,
    bar: Bar = "rich",
    say: bool = False,
) -> Track[Item]:
    """Iterate over anything, with a beat, a time and a place for each item.

    The verdict can then say which item and step a rank is in, and that it is slow, not hung. When
    the outermost loop ends, one line says how many items and how long each kind of step took.

    Args:
        iterable: Its items are passed on unchanged; its exceptions pass; ``break`` is fine.
        name: Name of the loop.
        total: Number of items, if the iterable has no length.
        bar: ``rich``, ``tqdm`` or ``off``; drawn by rank 0, and only on a terminal.
        say: Print one line for each item, with its time and the times of its steps.
    """
    return Track(
        current(), iterable, text_of(name), _usable("track(total=...)", total), bar, say=say
    )


def _usable(what: str, number: int | None) -> int | None:
    """Ignore a bad argument alone: nothing is raised into training, nothing switched off."""
    try:
        if number is None or 0 <= (number := index(number)) <= LARGEST_NUMBER:
            return number
    except Exception:  # noqa: BLE001, S110 - whatever the user's object raises, it is no number
        pass
    if not current().settings.disable:
        log.once(what, f"{what} is ignored: it needs a whole number from 0 to 2**53")
    return None


beat = process_recorder.beat
"""Say "I advanced", under 0.3 microseconds. Never raises, never waits; any thread may call it."""
