"""What a process of our own is told of the environment: what it needs, and no token."""

from __future__ import annotations

import os
import re
from contextlib import suppress

NEEDED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "PYTHONHOME", "TEMP", "TMP", "TMPDIR", "TZ"}
)  # the folders that `tempfile` takes, the locale, and where an unusual Python keeps its library
NEEDED_BEGINNINGS = ("HANGCHECK_", "LC_")
SEARCHED = frozenset({"LD_LIBRARY_PATH", "PATH"})


def own_environment() -> dict[str, str]:
    """Choose from this process's environment what a process of our own gets.

    Tokens, keys and passwords are in none of these, and nothing of PYTHONPATH, PYTHONSTARTUP or
    LD_PRELOAD, which name code to run.
    """
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name in NEEDED or name.startswith(NEEDED_BEGINNINGS)
    }
    searched = {name: searched_folders(name) for name in SEARCHED if name in os.environ}
    return chosen | {name: folders for name, folders in searched.items() if folders}


def searched_folders(name: str) -> str:
    """Return a search path of this process without what means the working folder.

    Empty and relative entries mean it too: whoever can write there would choose what runs. Only
    names are compared: a folder on a dead disk must not hold anybody up.
    """
    here = names_of_working_folder()
    entries = re.split("[:;]" if name == "LD_LIBRARY_PATH" else ":", os.environ.get(name, ""))
    kept = (
        entry for entry in entries if entry.startswith("/") and os.path.normpath(entry) not in here
    )
    return ":".join(kept)


def names_of_working_folder() -> frozenset[str]:
    """Return the working folder by the kernel's name, and by the shell's where that has links."""
    names = {os.environ.get("PWD", "")}
    with suppress(OSError):  # it was removed
        names.add(os.getcwd())  # noqa: PTH109 - a name to compare
    return frozenset(os.path.normpath(name) for name in names if name)
