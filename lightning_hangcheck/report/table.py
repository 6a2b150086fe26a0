"""Rows of cells to aligned lines that fit the width."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import INDENT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GAP = "  "
NARROWEST = 12
TABLE_WIDTH = 136
"""Wider than the prose: a cut function name costs more than a line that wraps."""


def aligned(rows: Sequence[Sequence[str]], shrinking: Collection[int], tails: int) -> list[str]:
    """Align cells in columns; empty columns vanish.

    Args:
        rows: All with the same number of cells.
        shrinking: Columns that give way, widest first, where a line would not fit.
        tails: The shrinking column whose end matters more than its start (``file:line``).
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = TABLE_WIDTH - len(INDENT)
    while _width(widths) > room:
        widest = max(shrinking, key=lambda column: widths[column])
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    lines = []
    for row in rows:
        cells = [
            _fit(cell, width, from_left=column == tails).ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            if width
        ]
        lines.append((INDENT + GAP.join(cells)).rstrip())
    return lines


def _width(widths: Sequence[int]) -> int:
    shown = [width for width in widths if width]
    return sum(shown) + len(GAP) * (len(shown) - 1)


def _fit(cell: str, width: int, *, from_left: bool) -> str:
    if len(cell) <= width:
        return cell
    return f"...{cell[3 - width :]}" if from_left else f"{cell[: width - 3]}..."
