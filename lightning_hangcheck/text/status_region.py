"""Some lines at the bottom of a terminal that others print on: the sequences that keep them. Pure.

The terminal itself scrolls what others print in the lines above (DECSTBM, as apt's progress bar
has it), so their bytes go to it as they always do, and nobody stands between. Each text here is
for one write(2), which the kernel does not mix with others (drivers/tty/tty_io.c), and leaves the
cursor and its colours where the others had them (DECSC, DECRC).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_LINES, LEAST_COLUMNS = 6, 20
"""Of a terminal with a region: below that all of it belongs to the job."""
SAVED, RESTORED = "\x1b7", "\x1b8"
NO_MARGINS = "\x1b[r"
PLAIN = "\x1b[0m"
TO_END_OF_LINE, TO_END_OF_SCREEN = "\x1b[K", "\x1b[J"
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}
"""Of the styles that this package uses, by their names in rich."""
CUT, WRAPPED = "\x1b[?7l", "\x1b[?7h"
"""What a line does that is too long, as one with signs of double width may be."""
GIVEN_UP = f"{SAVED}{NO_MARGINS}{RESTORED}{TO_END_OF_SCREEN}"
"""Takes a region away of which nothing else is known: the cursor of the others is above it."""


class Size(NamedTuple):
    """Of a terminal."""

    columns: int
    lines: int


def most_lines(size: Size) -> int:
    """Return how many lines a region may have: half of the terminal, none of a tiny one."""
    if size.lines < LEAST_LINES or size.columns < LEAST_COLUMNS:
        return 0
    return size.lines // 2


def made(size: Size, height: int) -> str:
    """Make room for a region, whether there is a smaller one or none.

    What the others printed moves up where it must, and their cursor stays in its column.

    Args:
        size: Of the terminal.
        height: Lines of the region.
    """
    room = "\x1bD" * height + f"\x1b[{height}A"
    return f"{SAVED}{NO_MARGINS}{RESTORED}{room}{_margins(size, height)}"


def drawn(size: Size, lines: Sequence[tuple[str, str]], *, colours: bool) -> str:
    """Draw the lines of a region. Its margins are set again: a program may have taken them away.

    Args:
        size: Of the terminal.
        lines: Of the region, each with its style; shorter than the terminal is wide.
        colours: Whether styles are shown.
    """
    top = size.lines - len(lines) + 1
    parts = [
        f"\x1b[{top + number};1H{PLAIN}{_styled(text, style if colours else '')}{TO_END_OF_LINE}"
        for number, (text, style) in enumerate(lines)
    ]
    return f"{_margins(size, len(lines))}{SAVED}{CUT}{''.join(parts)}{WRAPPED}{RESTORED}"


def taken_away(size: Size, height: int) -> str:
    """Give the lines of a region back to the others, empty."""
    top = size.lines - height + 1
    return f"{SAVED}{NO_MARGINS}\x1b[{top};1H{PLAIN}{TO_END_OF_SCREEN}{RESTORED}"


def _margins(size: Size, height: int) -> str:
    """Setting them moves the cursor to the top left."""
    return f"{SAVED}\x1b[1;{size.lines - height}r{RESTORED}"


def _styled(text: str, style: str) -> str:
    codes = ";".join(CODES[word] for word in style.split())
    return f"\x1b[{codes}m{text}{PLAIN}" if codes else text
