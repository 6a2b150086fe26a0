"""What a peer printed about a case, line by line with its time, and what was heard in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from re import Match, Pattern


class Line(msgspec.Struct, frozen=True):
    """A line of output.

    Attributes:
        at_s: Clock time at which it came, seconds since 1970.
    """

    at_s: float
    text: str


class Transcript(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    Attributes:
        exit_code: None where the run had to be ended at its time limit.
        ended_s: Clock time of its end, or of the limit.
        onset_s: Clock time at which the program noted that it goes wrong.
        stacks: The newest stack dump that the peer wrote to a file, empty if it writes none.
    """

    lines: list[Line]
    exit_code: int | None
    ended_s: float
    onset_s: float | None = None
    stacks: str = ""

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, as a failure."""
        return self.exit_code not in (None, 0)

    def found(self, pattern: Pattern[str]) -> Iterator[tuple[float, Match[str]]]:
        """Every place where a pattern occurs, with the time of its line."""
        for line in self.lines:
            for match in pattern.finditer(line.text):
                yield line.at_s, match

    def says(self, pattern: Pattern[str]) -> bool:
        """Whether a pattern occurs anywhere."""
        return next(self.found(pattern), None) is not None


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What was heard, with everything in doubt taken in the peer's favour.

    Attributes:
        at_s: Clock time of the first line, or of the failing end, that tells that something is
            wrong; None where nothing does.
        culprits: Each set of ranks that the output names as the reason; one right one is enough.
        causes: Slugs of all causes that the output may stand for.
        words: The line that tells.
    """

    at_s: float | None = None
    culprits: list[list[int]] = []
    causes: list[str] = []
    words: str = ""


def first_alarm(transcript: Transcript, patterns: Iterable[Pattern[str]]) -> Line | None:
    """The first line with one of these patterns, else the end if that was a failure."""
    together = list(patterns)
    for line in transcript.lines:
        if any(pattern.search(line.text) for pattern in together):
            return line
    if transcript.failed:
        return Line(transcript.ended_s, f"exit code {transcript.exit_code}")
    return None


def heard_causes(transcript: Transcript, causes: Iterable[tuple[Pattern[str], str]]) -> list[str]:
    """The causes whose patterns occur."""
    return sorted({slug for pattern, slug in causes if transcript.says(pattern)})
