"""Layout of all text reports: labelled, wrapped, bounded paragraphs, and aligned tables."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from lightning_hangcheck.text.shown import one_line

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

WIDTH = 120
INDENT = " " * 6
LABEL_WIDTH = 9
MARGIN = INDENT + " " * LABEL_WIDTH
LONGEST_WORD = 400
LONGEST_COMMAND = 240
"""Of a line that only identifies a job."""
GAP = "  "
TABLE_WIDTH = 136  # Wider than prose: a cut function name is worse than a line that wraps.


def plain(text: str) -> str:
    """Reduce foreign text to one harmless line with words of limited length."""
    words = one_line(text).split(" ")
    return " ".join(w if len(w) <= LONGEST_WORD else f"{w[:LONGEST_WORD]}..." for w in words)


def of_rank(rank: int | None, text: str) -> str:
    """Prefix a text with its rank, unless it already begins with that."""
    named = rank is None or re.match(rf"rank {rank}\b", text) is not None
    return text if named else f"rank {rank}: {text}"


def wrapped(text: str, first: str, rest: str, most: int, width: int = WIDTH) -> list[str]:
    """Wrap to ``most`` lines, cut by ``...``; words stay whole, so that paths can be copied."""
    lines: list[str] = []
    for piece in text.splitlines() or [""]:
        own = rest + " " * (len(piece) - len(piece.lstrip()))
        # later lines of a numbered item start below its first word
        number = re.match(r"\d+\. ", piece)
        lines += textwrap.wrap(
            plain(piece),
            width=width - len(" ..."),
            initial_indent=own if lines else first,
            subsequent_indent=own + " " * (len(number[0]) if number else 0),
            break_long_words=False,
            break_on_hyphens=False,
        )
    if len(lines) > most:
        lines = [*lines[: most - 1], f"{lines[most - 1]} ..."]
    return lines


def labelled(label: str, text: str, most: int) -> list[str]:
    """Write one labelled paragraph of at most ``most`` lines."""
    return wrapped(text, f"{INDENT}{label:<{LABEL_WIDTH}}", MARGIN, most)


def listed(label: str, items: Iterable[str], most: int) -> list[str]:
    """Write a labelled list of ``most`` lines (at least 2); items that do not fit are counted."""
    every = list(items)
    lines: list[str] = []
    for index, item in enumerate(every):
        paragraph = labelled("" if lines else label, item, min(4, most - 1))
        more_follow = index + 1 < len(every)
        if len(lines) + len(paragraph) + more_follow > most:
            return lines + labelled("", f"... and {len(every) - index} more, see verdict.json", 1)
        lines += paragraph
    return lines


def aligned(
    rows: Sequence[Sequence[str]],
    shrinking: Collection[int] | Mapping[int, int] = (),
    tails: int = -1,
    right: Collection[int] = (),
    indent: str = INDENT,
    width: int | None = TABLE_WIDTH,
) -> list[str]:
    """Align cells in columns; empty columns are dropped. All text tables are made here.

    Args:
        rows: Rows of equal length; without rows there are no lines.
        shrinking: Columns that are cut, widest first, if a line is too long: to 12 characters, or
            to the width in a mapping.
        tails: The shrinking column that is cut at its start (``file:line``).
        right: Columns that are aligned right.
        indent: Prefix of each line.
        width: Maximum line length; None for no limit.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    least = shrinking if isinstance(shrinking, dict) else dict.fromkeys(shrinking, 12)

    def too_wide() -> bool:
        shown = [width for width in widths if width]
        whole = len(indent) + sum(shown) + len(GAP) * (len(shown) - 1)
        return width is not None and whole > width

    while too_wide() and (wide := [at for at in least if widths[at] > least[at]]):
        widths[max(wide, key=lambda at: widths[at])] -= 1
    lines = []
    for row in rows:
        cells = [
            f"{fit(cell, wide, from_left=at == tails):{'>' if at in right else '<'}{wide}}"
            for at, (cell, wide) in enumerate(zip(row, widths, strict=True))
            if wide
        ]
        lines.append((indent + GAP.join(cells)).rstrip())
    return lines


def fit(cell: str, width: int, *, from_left: bool = False) -> str:
    """Cut a cell to a width, at its start or its end."""
    if len(cell) <= width:
        return cell
    return f"...{cell[3 - width :]}" if from_left else f"{cell[: width - 3]}..."
