"""Local variables of a process's main thread, taken by py-spy when somebody asked for them."""

from __future__ import annotations

import re

from lightning_hangcheck.model.evidence import Frame, Gap, LocalValues
from lightning_hangcheck.probes.stacks.py_spy import (
    SHORT_VALUE,
    SHORT_VALUES,
    PySpyFailed,
    PySpyLate,
    find_py_spy,
)
from lightning_hangcheck.probes.stacks.unpaused import DumpedLocal, DumpedThread, read_threads
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.time_limit import Looked, guarded

LONGEST_VALUE = 80
_CUT_WORD = re.compile(r"[^\s\"',;:=]*\.\.\.([\"'\])}]*)\Z")
MOST_VALUES = 16
"""Of one call: a function with more says nothing that anybody reads."""


def local_values(
    pid: int, rank: int | None, time_limit_s: float, tid: int | None = None
) -> Looked[tuple[LocalValues, ...]]:
    """Read the local variables of a thread's calls; about 15 ms, as `python_stacks`.

    No code of the process runs: of an object without a plain value only its type and address are
    shown. Values behind a name that tells a secret are hidden, and what looks like one anywhere.

    Args:
        pid: The process.
        rank: Whose, for gaps.
        time_limit_s: Seconds until py-spy is killed.
        tid: The thread; None for the main one.

    Returns:
        Calls that have variables, outermost first.
    """
    what = f"local variables of pid {pid}"

    def look() -> Looked[tuple[LocalValues, ...]]:
        program = find_py_spy()
        if program is None:
            return None, (
                Gap(what, rank, "py-spy is not installed", "local_values", "pip install py-spy"),
            )
        try:
            threads = read_threads(program, pid, time_limit_s, SHORT_VALUES)
        except (PySpyFailed, PySpyLate) as error:
            return None, (Gap(what, rank, f"py-spy: {error}", "local_values"),)
        return _of_thread(tid or pid, threads), ()

    return guarded("local_values", what, rank, look)


def _of_thread(tid: int, threads: list[DumpedThread]) -> tuple[LocalValues, ...]:
    frames = next((one.frames for one in threads if one.os_thread_id == tid), [])
    return tuple(
        LocalValues(Frame(frame.name, frame.filename, frame.line), _shown(frame.locals))
        for frame in reversed(frames)
        if frame.locals
    )


def _shown(variables: list[DumpedLocal]) -> dict[str, str]:
    """Hide secrets in whole values, then cut these: half a secret has no shape any more."""
    named = {one.name: _whole_words(one.repr or "?") for one in variables[:MOST_VALUES]}
    hidden = redact_values(named)
    return {
        name: value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}..."
        for name, value in hidden.items()
    }


def _whole_words(value: str) -> str:
    """Drop the word in which py-spy cut a text: it may be the beginning of a secret."""
    if len(value) < SHORT_VALUE:
        return value
    return _CUT_WORD.sub(r"...\1", value)
