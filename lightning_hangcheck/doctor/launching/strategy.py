"""Which strategy does the script ask the Trainer for? Read from its source, nothing is run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.check import Check
from lightning_hangcheck.doctor.places import beginning
from lightning_hangcheck.files.apart import NoAnswerFromStorage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.doctor.subject import Subject

NAME = "Trainer's strategy"
READ_LIMIT_S = 2.0


def strategy_named(subject: Subject) -> tuple[Check, ...]:
    """Warn where several ranks leave the strategy to be guessed: ``strategy="auto"``.

    Args:
        subject: The run.
    """
    launch = subject.launch
    if launch.script is None or launch.ranks == 1:
        return ()
    given = launch.argument("--strategy") or launch.argument("--trainer.strategy")
    found = [f"--strategy {given}"] if given == "auto" else []
    if given is None:
        found = [f"{launch.script}:{line}" for line in _lines_with_auto(launch.script)]
    if not found:
        return (Check(NAME, "ok", f"{launch.script} does not ask for the strategy auto"),)
    sentence = f'{found[0]} leaves the strategy to be guessed from what each rank sees ("auto")'
    return (Check(NAME, "warning", sentence, 'Trainer(..., strategy="ddp")'),)


def _lines_with_auto(script: str) -> Iterator[int]:
    try:
        tree = ast.parse(beginning(Path(script), READ_LIMIT_S))
    except (OSError, NoAnswerFromStorage, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "strategy":
            yield from _line_of_auto(node.value)


def _line_of_auto(value: ast.expr) -> Iterator[int]:
    if isinstance(value, ast.Constant) and value.value == "auto":
        yield value.lineno
