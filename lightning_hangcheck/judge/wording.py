"""Words for ranks, places, times, exit codes and silent nodes, the same in every sentence."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.model.evidence import NAMELESS
from lightning_hangcheck.text.shown import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lightning_hangcheck.model.case import Reach, SilentNode
    from lightning_hangcheck.model.evidence import Frame, Holder

UNKNOWN_S = 10 * 365 * 86_400.0
"""Ten years stand for an unknown time, such as that of a stack in a file."""
MOST_RANGES = 32
SHOWN_RANGES = 8
"""Most ranges of ranks in a sentence, and how many it shows if there are more."""
SHELL_SIGNAL_BASE = 128
SHELL_CODES = {126: "the command was found, but may not be run", 127: "a command was not found"}
"""Exit codes of POSIX shells (XCU 2.8.2), also of torchrun's child if that is a shell."""


def name_ranks(ranks: Iterable[int]) -> str:
    """Write ``rank 1``, or ``ranks 0,2-7``; of many ranges the first, and how many ranks it is."""
    every = set(ranks)
    shown = format_ranks(every)
    ranges = shown.split(",")
    if len(ranges) > MOST_RANGES:
        return f"{len(every):,} ranks ({','.join(ranges[:SHOWN_RANGES])},...)"
    return f"{'rank' if len(every) == 1 else 'ranks'} {shown}"


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
    if seconds >= UNKNOWN_S:
        return "an unknown time"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def rank_time(ranks: int, seconds: float) -> str:
    """Write what so long a time of all ranks costs, ``12 rank minutes`` or ``2.5 rank hours``.

    Empty of one rank, and of little: there it says no more than the time itself.
    """
    minutes = ranks * seconds / 60
    if ranks < 2 or minutes < 2:
        return ""
    if minutes < 120:
        return f"{minutes:.0f} rank minutes"
    hours = minutes / 60
    return f"{hours:.1f} rank hours" if hours < 10 else f"{hours:,.0f} rank hours"


def short_place(frame: Frame) -> str:
    """Write a line of code as ``demo/train.py:88``: enough to find it, short enough to read."""
    return f"{'/'.join(frame.file.split('/')[-2:])}:{frame.line}"


def within(frame: Frame | None) -> str:
    """Write ``in prepare (demo/train.py:88)``, or nothing where the place is unknown."""
    if frame is None:
        return ""
    if frame.function == "<module>":
        return f"at {short_place(frame)}"
    return f"in {function_name(frame)} ({short_place(frame)})"


def function_name(frame: Frame) -> str:
    """Write a function as ``prepare`` or ``Samples.prepare``, or ``load_shards.<listcomp>``.

    The name of a comprehension or lambda says nothing without the function around it. Code outside
    of any function has no name that a reader would know.
    """
    if frame.function == "<module>":
        return "this file"
    *around, name = frame.function.split(".<locals>.")
    return ".".join((*around[-1:], name)) if name in NAMELESS else name


def join(*parts: str) -> str:
    """Join the parts of a sentence that are not empty."""
    return " ".join(part for part in parts if part)


# How processes and nodes end.


def exit_code_in_words(code: int) -> str:
    """Say what an exit code means: ``137: killed by SIGKILL (usually the kernel's ...)``.

    Args:
        code: As a shell shows it, or as Python's subprocess does (below 0: killed by that signal).

    Returns:
        The number as a shell shows it, and its meaning where it has one that others gave it.
    """
    meaning, number = SHELL_CODES.get(shell_code(code), ""), ending_signal_of(code)
    if number is not None:
        why = causes_file().signals.get(signal_name(number), "")
        meaning = f"killed by {signal_name(number)}{f' ({why})' if why else ''}"
    return f"{shell_code(code)}{f': {meaning}' if meaning else ''}"


def shell_code(exit_code: int) -> int:
    """Return an exit code as a shell shows it: 128 plus the number of the signal that killed."""
    return exit_code if exit_code >= 0 else SHELL_SIGNAL_BASE - exit_code


def ending_signal_of(code: int) -> int | None:
    """Return the signal that an exit code tells of; a shell between reports 128 plus that."""
    number = -code if code < 0 else code - SHELL_SIGNAL_BASE
    return number if number in set(signal.Signals) else None


def signal_name(number: int) -> str:
    """Return a signal's name; its number in words where this machine has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def which_node(node: SilentNode) -> str:
    """Write ``node 3 (ranks 24-31)``."""
    many = "ranks" if "," in node.ranks or "-" in node.ranks else "rank"
    return f"node {node.number}" + (f" ({many} {node.ranks})" if node.ranks else "")


def why_silent(node: SilentNode) -> str:
    """Say what the silence of a node comes from, as far as anything tells."""
    return WHY_SILENT[node.reach].format(since=duration(node.unanswered_s))


WHY_SILENT: dict[Reach, str] = {
    "answers": "the connections of its ranks still carry something: only its sidecar is dead",
    "goes_on": "the other ranks advance without a pause: only its sidecar is dead, or nobody needs "
    "its ranks",
    "unanswered": "what is sent to its ranks has not been acknowledged for {since}: its host is "
    "down, or the network is cut",
    "unknown": "its host is down, the network is cut, or its sidecar is dead",
}
