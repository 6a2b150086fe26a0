"""Shows a verdict: coloured on a terminal, plain into a pipe, and as an exit code.

Nothing is said by colour alone.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.text.plain_text import one_line

if TYPE_CHECKING:
    from rich.text import Text

    from lightning_hangcheck.model.verdict import Verdict


KIND_STYLES = {
    "HANG": "bold red",
    "DEAD": "bold red",
    "CRASHED": "bold red",
    "SUSPECT": "bold yellow",
    "SLOW": "bold yellow",
    "RECOVERED": "bold green",
    "HEALTHY": "bold green",
    "FINISHED": "bold green",
}
LABEL = r"(?m)^ {6}(?:why|proof|do|not seen|more)\b"
TROUBLED_ROW = r"(?m)^ {6}ranks? \S+ +(?:is|are|never) .*$"
HANG = 3
FOUND = ("hang", "dead", "crashed")


def show(text: str) -> None:
    """Colour on a terminal, the plain text into a pipe or file."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    # rich is imported here because a pipe never needs it, and it takes tens of milliseconds
    from rich.console import Console

    Console(highlight=False).print(coloured(text), end="", soft_wrap=True)


def say(sentence: str) -> None:
    """Print a line to stderr; whatever it quotes of others can do nothing to the terminal."""
    click.echo(f"hangcheck: {one_line(sentence)}", err=True)


def exit_code_of(verdict: Verdict) -> int:
    """Return 3 for a hang that was found, else 0.

    A script may end a job on 3, so a suspicion is not enough: many of them pass by themselves.
    """
    return HANG if verdict.verdict in FOUND else 0


def as_typed(path: Path) -> str:
    """Below the working folder the short way to say it, which can be typed as it stands."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def coloured(text: str) -> Text:
    """Lay colour over a report that `terminal.render` wrote; its characters stay the same."""
    from rich.text import Text

    painted = Text(text)
    for kind, style in KIND_STYLES.items():
        painted.highlight_regex(rf"\A{kind}\b", style)
    painted.highlight_regex(LABEL, "bold")
    painted.highlight_regex(TROUBLED_ROW, "red")
    return painted
