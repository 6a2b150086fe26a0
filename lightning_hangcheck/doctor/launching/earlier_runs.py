"""How long a command takes, by what earlier runs of it took. Pure; the ledger is read elsewhere.

A run of another length tells the pace: ``--max_steps 100`` that took ten minutes makes 5,400 steps
nine hours. What comes once, such as loading the model, is not multiplied.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from lightning_hangcheck.ledger.book import Run

LENGTHS = ("max_steps", "max_epochs", "num_train_epochs")
"""Options that say how far a run goes: Lightning's, and transformers'."""
ONCE = (
    "startup",
    "tokenizer",
    "model_load",
    "logger_init",
    "trainer_init",
    "rendezvous",
    "sanity_check",
    "teardown",
)
"""Phases that a longer run passes once, too."""


class Expected(NamedTuple):
    """What an earlier run lets one expect.

    Attributes:
        seconds: For the command; at least so many, where `done` is False.
        run: The earlier run.
        done: Whether that run came to its end.
    """

    seconds: float
    run: Run
    done: bool


class _Command(NamedTuple):
    """A command without its length, and that length."""

    words: tuple[str, ...]
    length: float | None


def expect(command: Sequence[str], runs: Iterable[Run]) -> Expected | None:
    """Say how long a command will take; None where no run of it is known.

    The newest run that was done tells; without one, the longest that was not.

    Args:
        command: As it would be started.
        runs: The oldest first.
    """
    wanted = _without_length(command)
    alike = [(run, known) for run in runs if (known := _read(run.command)).words == wanted.words]
    for run, known in reversed(alike):
        times = _times(wanted, known)
        if (run.exit_code == 0 or run.verdict == "finished") and times is not None:
            once = min(run.duration_s, _once(run))
            return Expected(once + (run.duration_s - once) * times, run, done=True)
    unfinished = [run for run, known in alike if known.length == wanted.length]
    longest = max(unfinished, key=lambda run: run.duration_s, default=None)
    return None if longest is None else Expected(longest.duration_s, longest, done=False)


def _times(wanted: _Command, known: _Command) -> float | None:
    """How many times as far; None where only one of them says how far."""
    if wanted.length is None or known.length is None:
        return 1.0 if wanted.length == known.length else None
    return wanted.length / known.length


def _once(run: Run) -> float:
    return sum(one.seconds for one in run.spent if one.phase in ONCE) / max(1, run.ranks)


def _read(command: str) -> _Command:
    try:
        return _without_length(shlex.split(command))
    except ValueError:
        return _Command((command,), None)


def _without_length(words: Sequence[str]) -> _Command:
    kept: list[str] = []
    length: float | None = None
    for word in words:
        before = kept[-1] if kept else ""
        name, equals, value = word.partition("=")
        if _says_length(name) and equals and _is_number(value):
            length = float(value)
            kept.append(f"{name}=")
        elif _says_length(before) and before.startswith("-") and _is_number(word):
            length = float(word)
            kept[-1] = f"{before}="
        else:
            kept.append(word)
    return _Command(tuple(kept), length)


def _says_length(option: str) -> bool:
    return option.lstrip("-+").rpartition(".")[2].replace("-", "_") in LENGTHS


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) > 0
