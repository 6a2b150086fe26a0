"""Labelled, wrapped, bounded paragraphs: the shape of every text report."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from lightning_hangcheck.model.plain_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 120
INDENT = " " * 6
LABEL_WIDTH = 9
MOST_ITEM_LINES = 4
LONGEST_WORD = 400
_NUMBER = re.compile(r"\d+\. ")


def plain(text: str) -> str:
    """Make a text of foreign origin one harmless line, in which no word is without end."""
    words = one_line(text).split(" ")
    return " ".join(w if len(w) <= LONGEST_WORD else f"{w[:LONGEST_WORD]}..." for w in words)


def wrapped(text: str, first: str, rest: str, most: int) -> list[str]:
    """Wrap a text to `WIDTH` columns, at most ``most`` lines; a longer one ends in ``...``.

    Words are never broken, so a path can still be copied; only such a word makes a line longer.

    Args:
        text: Any text; lines of it stay lines, with their own indentation.
        first: What the first line begins with.
        rest: What every later line begins with.
        most: Largest number of lines.
    """
    lines: list[str] = []
    for piece in text.splitlines() or [""]:
        own = rest + " " * (len(piece) - len(piece.lstrip()))
        lines += textwrap.wrap(
            plain(piece),
            width=WIDTH - len(" ..."),
            initial_indent=own if lines else first,
            subsequent_indent=own + " " * _hang(piece),
            break_long_words=False,
            break_on_hyphens=False,
        )
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."]
    return lines


def _hang(piece: str) -> int:
    """Width of ``1. `` before a list's item: its later lines stand below its first word."""
    number = _NUMBER.match(piece)
    return len(number[0]) if number else 0


def labelled(label: str, text: str, most: int) -> list[str]:
    """Write one labelled paragraph of at most ``most`` lines."""
    return wrapped(text, f"{INDENT}{label:<{LABEL_WIDTH}}", INDENT + " " * LABEL_WIDTH, most)


def listed(label: str, items: Iterable[str], most: int) -> list[str]:
    """Write a labelled list, one item a paragraph; what does not fit is counted, not shown.

    Args:
        label: Stands before the first item.
        items: One paragraph each, cut after four lines.
        most: Largest number of lines of the whole list; at least 2.
    """
    every = list(items)
    lines: list[str] = []
    for index, item in enumerate(every):
        paragraph = labelled("" if lines else label, item, min(MOST_ITEM_LINES, most - 1))
        more_follow = index + 1 < len(every)
        if len(lines) + len(paragraph) + more_follow > most:
            return lines + labelled("", f"... and {len(every) - index} more, see verdict.json", 1)
        lines += paragraph
    return lines
