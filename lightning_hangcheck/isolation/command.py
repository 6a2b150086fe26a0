"""What is started: a Python of our own, in which only what is installed can be imported.

``python -m`` would put the working folder first on the path of modules, and PYTHONPATH next: a
``queue.py`` there would be taken for the standard library's. So a file of ours is run by its path,
in an environment without any variable of Python's. It loads this package from where it lies, and
dependencies from where the process that starts it has them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path

ENTRY = Path(__file__).with_name("entry.py")
DEPENDENCIES_VARIABLE = "HANGCHECK_DEPENDENCIES"
DEPENDENCIES = ("msgspec", "networkx", "psutil", "pynvml", "tomli")
"""All that the sidecar and the reader of GPUs import beside the standard library."""


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package as a program."""
    # s: no folder of the user's; what is installed there is named by `environment_of_module`
    options = "-sB" if sys.dont_write_bytecode else "-s"
    return [interpreter(), options, str(ENTRY), module, *arguments]


def environment_of_module() -> dict[str, str]:
    """Return the environment for a command of `own_command`: dependencies are found by it."""
    folders = {name: folder for name in DEPENDENCIES if (folder := folder_of(name)) is not None}
    return {**own_environment(), DEPENDENCIES_VARIABLE: json.dumps(folders)}


def interpreter() -> str:
    """Return the Python that runs this process, also where it does not know itself by name."""
    named = sys.executable or ""
    if named.startswith("/") and os.access(named, os.X_OK):
        return named
    return os.readlink("/proc/self/exe")  # noqa: PTH115 - the kernel's name, passed on as it is


def folder_of(dependency: str) -> str | None:
    """Find the folder in which a dependency is installed, or the one that this process has it from.

    What is installed goes before what PYTHONPATH or the script's folder offers. The working folder
    counts only if this process has itself imported something from there under that name. None where
    there is none, or where something else than a path finds it (an editable installation), which
    will do so in the new process.
    """
    known = json.loads(os.environ.get(DEPENDENCIES_VARIABLE, "{}"))
    if dependency in known:
        return str(known[dependency])
    for entry in _places(dependency):
        spec = PathFinder.find_spec(dependency, [entry])
        if spec is not None and spec.origin is not None:  # a plain folder of that name has none
            return entry
    return None


def _places(dependency: str) -> list[str]:
    """Absolute entries of the path of modules: first those that no variable and no start added."""
    here = names_of_working_folder()
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    offered = {os.path.normpath(os.path.join(top, at)) for top in here for at in named if at}  # noqa: PTH118
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    offered.add(os.path.dirname(os.path.normpath(script)))  # noqa: PTH120 - a name to compare
    entries = [os.path.normpath(entry) for entry in sys.path if entry.startswith("/")]
    away = [entry for entry in entries if entry not in here]
    return [
        *(entry for entry in away if entry not in offered),
        *(entry for entry in away if entry in offered),
        *(here if dependency in sys.modules else ()),
    ]


# What is handed on of the environment: what is needed, and no token

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
