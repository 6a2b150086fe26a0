"""What a training script calls: checkpoint, section, beat."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.recorder.lifecycle import Section, current, process_recorder
from lightning_hangcheck.recorder.loops import Step, Track
from lightning_hangcheck.text.shown import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.recorder.loops import Bar

Item = TypeVar("Item")
LARGEST_NUMBER = 2**53
"""Every reader of JSON holds whole numbers up to here exactly."""


def checkpoint(name: str, number: int | None = None) -> None:
    """Say that this rank has passed a named point: on the console, in the journal, to the sidecar.

    Under 10 microseconds. Never raises and never waits.

    Args:
        name: For people; one line, secrets are hidden, 200 characters are shown.
        number: From 0 to 2**53; None for one more than the last one.
    """
    current().checkpoint(name, _usable("checkpoint(number=...)", number))


def section(name: str) -> Section:
    """Mark code that may hang: a line before, one after, and the sidecar knows where the rank is.

    Args:
        name: What is called, for example ``"WandbLogger constructor"``.

    Returns:
        A context manager. An exception that leaves it is shown and goes on.
    """
    return Section(current(), name)


def step(name: str, /, *, say: bool = False, **values: object) -> Step:
    """Begin a named step of a loop: shown, timed and beaten; a line for each only if asked for.

    ``with step("get observation"):`` ends with its block. A plain ``step("get observation")`` ends
    where the next step begins, or with the item of the tracked loop around it. Nests; a few
    microseconds; never raises of its own.

    Args:
        name: The same one each time; durations are kept by name.
        say: Print one line when it ends, with its number, values and time. ``HANGCHECK_STEPS=1``
            does so for every step and every item of a tracked loop.
        values: Of this step, for that line: ``step("tool", tool="check_storage", say=True)``. Those
            known only later: ``with step("generate", say=True) as one: one.add(tokens=128)``.
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
    """Go through any iterable with a beat, a time and a place for each item.

    The verdict can then say which item and step a rank is in, and that it is slow, not hung. When
    the outermost loop ends, one line says how many items and how long each kind of step took.

    Args:
        iterable: Its items come as they are; its exceptions pass; ``break`` is fine.
        name: Of the loop.
        total: Number of items, where the iterable does not tell.
        bar: ``rich``, ``tqdm`` or ``off``; drawn by rank 0, and only on a terminal.
        say: Print one line for each item, with its time and that of its steps.
    """
    return Track(
        current(), iterable, text_of(name), _usable("track(total=...)", total), bar, say=say
    )


def _usable(what: str, number: int | None) -> int | None:
    """A bad argument is refused alone: nothing is raised into training, nothing switched off."""
    try:
        if number is None or 0 <= (number := int(number)) <= LARGEST_NUMBER:
            return number
    except Exception:  # noqa: BLE001, S110 - whatever the user's object raises, it is no number
        pass
    log.once(what, f"{what} is ignored: it needs a whole number from 0 to 2**53")
    return None


beat = process_recorder.beat
"""Say "I advanced", under 0.3 microseconds. Never raises, never waits; any thread may call it."""
