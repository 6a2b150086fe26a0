"""Does Python hand on at once what is printed? Told from a process's surroundings.

To a pipe or a file it writes 8 kB at a time (``io.DEFAULT_BUFFER_SIZE``) unless it is told not to;
to a terminal, line by line.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "PYTHONUNBUFFERED"
WITH_VALUES = ("-W", "-X")
"""Options of the interpreter whose value is a word of its own."""


def is_unbuffered(environment: Mapping[str, str], command: Sequence[str]) -> bool:
    """Whether Python was told to hand on each line.

    Args:
        environment: That it was started with.
        command: Its command line, or that of what starts it.
    """
    return bool(environment.get(VARIABLE)) or any("u" in one for one in _options(command))


def kept_back_in(mode: int) -> str | None:
    """Where output waits for more of it, by its kind; None where it does not, as on a terminal.

    Args:
        mode: Of standard output, as `os.stat` gives it.
    """
    if stat.S_ISFIFO(mode):
        return "a pipe"
    return "a file" if stat.S_ISREG(mode) else None


def _options(command: Sequence[str]) -> list[str]:
    """The interpreter's own one-letter options, not those of the script."""
    words = iter(command)
    for word in words:
        if word.rpartition("/")[2].startswith("python"):
            break
    found = []
    for word in words:
        if word in WITH_VALUES:
            next(words, "")
            continue
        if not word.startswith("-") or word.startswith("--"):
            break
        if not word.startswith(WITH_VALUES):
            found.append(word.partition("c")[0].partition("m")[0])
        if word[-1] in "cm":
            break
    return found
