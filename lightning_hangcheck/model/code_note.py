"""What the source says around a line on which a rank stands."""

from __future__ import annotations

from msgspec import Struct


class CodeNote(Struct, frozen=True, kw_only=True):
    """A line of the user's own code.

    Attributes:
        condition: Innermost test of the rank under which the line runs, as written; empty if none.
        condition_line: Its line.
        loops: First and last lines of the loops of its function that the line is in, outermost
            first.
    """

    file: str
    line: int
    condition: str = ""
    condition_line: int = 0
    loops: tuple[tuple[int, int], ...] = ()
