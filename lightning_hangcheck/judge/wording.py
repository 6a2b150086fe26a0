"""Words for ranks, places and times, the same in every sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import NAMELESS
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.evidence import Frame, Holder

MINUTES_FROM_S = 120.0
UNTOLD_S = 10 * 365 * 86_400.0
"""Ten years stand for a time that nobody can tell, as of a stack that lies in a file."""
ROUNDED_FROM_H = 10.0
PARTS_OF_A_PATH = 2
MOST_RANGES = 32
SHOWN_RANGES = 8
"""Ranges of ranks that a sentence has at most, and those that it shows where there are more."""


def name_ranks(ranks: Iterable[int]) -> str:
    """Write ``rank 1``, or ``ranks 0,2-7``; of many ranges the first, and how many ranks it is."""
    every = set(ranks)
    told = format_ranks(every)
    ranges = told.split(",")
    if len(ranges) > MOST_RANGES:
        return f"{len(every):,} ranks ({','.join(ranges[:SHOWN_RANGES])},...)"
    return f"{'rank' if len(every) == 1 else 'ranks'} {told}"


def process_name(process: Holder) -> str:
    """Write ``pid 4711 (python)``, or ``pid 4711 (python) on node1`` of one on another host."""
    program = f" ({process.program})" if process.program else ""
    return f"pid {process.pid}{program}{f' on {process.host}' if process.host else ''}"


def verb(ranks: Iterable[int], singular: str, plural: str) -> str:
    """Return the form of a verb that goes with so many ranks."""
    return singular if len(set(ranks)) == 1 else plural


def duration(seconds: float) -> str:
    """Write ``31 s``, or ``5 min`` from two minutes on: how long about, for a sentence.

    What was measured is written by `seconds_in_words`, to three digits.
    """
    if seconds >= UNTOLD_S:
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < MINUTES_FROM_S else f"{seconds / 60:.0f} min"


def hours_of_ranks(hours: float) -> str:
    """Write ``0.02``, or ``31`` from ten on; whose hours they are, the sentence says."""
    return f"{hours:.2f}" if hours < ROUNDED_FROM_H else f"{hours:.0f}"


def short_place(frame: Frame) -> str:
    """Write a line of code as ``demo/train.py:88``: enough to find it, short enough to read."""
    return f"{'/'.join(frame.file.split('/')[-PARTS_OF_A_PATH:])}:{frame.line}"


def within(frame: Frame | None) -> str:
    """Write ``in prepare (demo/train.py:88)``, or nothing where the place is unknown."""
    if frame is None:
        return ""
    if frame.function == "<module>":
        return f"at {short_place(frame)}"
    return f"in {function_name(frame)} ({short_place(frame)})"


def function_name(frame: Frame) -> str:
    """Write a function as ``prepare`` or ``Samples.prepare``, or ``load_shards.<listcomp>``.

    The name of a comprehension or lambda says nothing without the function around it.
    """
    *around, name = frame.function.split(".<locals>.")
    return ".".join((around[-1], name)) if around and name in NAMELESS else name


def join(*parts: str) -> str:
    """Join the parts of a sentence that are not empty."""
    return " ".join(part for part in parts if part)
