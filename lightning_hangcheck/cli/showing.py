"""Shows an outcome: coloured on a terminal, plain in a pipe, and as an exit code.

Colour never carries information alone. `launch.run.ABORTED` is 75, a job that ``--on-hang`` ended;
`errors` has 4, no job was found. doctor and lint return 1 and 2 by how grave their findings are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.rundir import RUNS_FOLDER, find_run_folder
from lightning_hangcheck.text.shown import KIND_STYLES, one_line
from lightning_hangcheck.time_limit import PART_LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.text import Text

    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder

BAD_USAGE = 2
HANG = 3
INTERRUPTED = 130  # 128 + SIGINT, as shells do
VERDICT_STYLES = {
    **{rf"\A{kind}\b": style for kind, style in KIND_STYLES.items()},
    r"(?m)^ {6}(?:why|proof|do|not seen|more)\b": "bold",
    r"(?m)^ {6}ranks? \S+ +(?:is|are|never) .*$": "red",
}
"""The style of each pattern in the text of `report.verdict_text`."""


def exit_code_of(verdict: Verdict) -> int:
    """Return 3 for a hang that was found, else 0: a script may end a job on 3."""
    return HANG if verdict.verdict in ("hang", "dead", "crashed") else 0


def show(text: str, styles: Mapping[str, str] = VERDICT_STYLES) -> None:
    """Print text: coloured on a terminal, plain into a pipe or file."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    # rich is imported here because a pipe never needs it, and it takes tens of milliseconds
    from rich.console import Console

    Console(highlight=False).print(coloured(text, styles), end="", soft_wrap=True)


def coloured(text: str, styles: Mapping[str, str] = VERDICT_STYLES) -> Text:
    """Add colour to a renderer's text; its characters stay the same."""
    from rich.text import Text

    painted = Text(text)
    for pattern, style in styles.items():
        painted.highlight_regex(pattern, style)
    return painted


def say(sentence: str) -> None:
    """Print a line to stderr; text quoted from others cannot control the terminal."""
    click.echo(f"hangcheck: {one_line(sentence)}", err=True)


def as_typed(path: Path) -> str:
    """Return a path as one can type it: relative if it is below the working folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def kept_in(folder: RunFolder | None) -> str:
    """Return where a verdict was saved, as one can type it; empty if it was not saved."""
    return "" if folder is None else as_typed(folder.path)


def found_run_folder(named: str | None, command: str) -> RunFolder:
    """Find the named run folder, or the newest below ``hangcheck_runs/``.

    Raises:
        UnreadableRun: There is none, or its storage does not answer.
    """
    try:
        return apart(PART_LIMIT_S, lambda: find_run_folder(named))
    except (NoAnswerFromStorage, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UnreadableRun(
            f"{named or RUNS_FOLDER} cannot be read ({why})",
            f"name a run folder that you may read: {command}",
        ) from error
