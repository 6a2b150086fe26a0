"""The command that starts our own Python process, which imports only what is installed.

``python -m`` would put the working folder first on the module path, then PYTHONPATH: a ``queue.py``
there would replace the standard library's. So a file of ours is run by its path, in an environment
without Python's variables. It loads this package from its own folder, and dependencies from the
folders of the starting process.
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
"""All that the sidecar and the GPU reader import besides the standard library."""


def own_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package as a program."""
    # -s: no user site folder; what is installed there is named by `environment_of_module`
    options = "-sB" if sys.dont_write_bytecode else "-s"
    return [interpreter(), options, str(ENTRY), module, *arguments]


def environment_of_module() -> dict[str, str]:
    """Return the environment for a command of `own_command`; it names the dependencies' folders."""
    folders = {name: folder for name in DEPENDENCIES if (folder := folder_of(name)) is not None}
    return {**own_environment(), DEPENDENCIES_VARIABLE: json.dumps(folders)}


def interpreter() -> str:
    """Return the Python that runs this process, even if ``sys.executable`` is empty."""
    named = sys.executable or ""
    if named.startswith("/") and os.access(named, os.X_OK):
        return named
    return os.readlink("/proc/self/exe")  # noqa: PTH115 - the kernel's name, passed on as it is


def folder_of(dependency: str) -> str | None:
    """Find the folder in which a dependency is installed, or from which this process has it."""
    # Installed packages go before those of PYTHONPATH or the script's folder. The working folder
    # counts only if this process has itself imported that name. None if there is no folder, or an
    # editable installation finds the dependency without a path, also in the new process.
    known = json.loads(os.environ.get(DEPENDENCIES_VARIABLE, "{}"))
    if dependency in known:
        return str(known[dependency])
    for entry in _places(dependency):
        spec = PathFinder.find_spec(dependency, [entry])
        if spec is not None and spec.origin is not None:  # a plain folder has no origin
            return entry
    return None


def _places(dependency: str) -> list[str]:
    """Return the absolute module paths: first those that no variable and no script added."""
    here = names_of_working_folder()
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    offered = {
        os.path.normpath(os.path.join(top, entry))  # noqa: PTH118 - names to compare
        for top in here
        for entry in named
        if entry
    }
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    offered.add(os.path.dirname(os.path.normpath(script)))  # noqa: PTH120 - a name to compare
    entries = [os.path.normpath(entry) for entry in sys.path if entry.startswith("/")]
    away = [entry for entry in entries if entry not in here]
    return [
        *(entry for entry in away if entry not in offered),
        *(entry for entry in away if entry in offered),
        *(here if dependency in sys.modules else ()),
    ]


# Environment for our processes: what is needed, and no token

NEEDED = frozenset(
    {"HOME", "LANG", "LANGUAGE", "PYTHONHOME", "TEMP", "TMP", "TMPDIR", "TZ"}
)  # folders for `tempfile`, the locale, and where an unusual Python keeps its library
NEEDED_BEGINNINGS = ("HANGCHECK_", "LC_")
SEARCHED = frozenset({"LD_LIBRARY_PATH", "PATH"})


def own_environment() -> dict[str, str]:
    """Choose which environment variables of this process our own processes get."""
    # No tokens, keys or passwords are among these variables, nor PYTHONPATH, PYTHONSTARTUP or
    # LD_PRELOAD, which name code to run.
    chosen = {
        name: value
        for name, value in os.environ.items()
        if name in NEEDED or name.startswith(NEEDED_BEGINNINGS)
    }
    searched = {name: searched_folders(name) for name in SEARCHED if name in os.environ}
    return chosen | {name: folders for name, folders in searched.items() if folders}


def searched_folders(name: str) -> str:
    """Return a search path of this process without the working folder."""
    # Empty and relative entries mean the working folder too: whoever can write there would choose
    # what runs. Only names are compared: a folder on a dead disk must not block.
    here = names_of_working_folder()
    entries = re.split("[:;]" if name == "LD_LIBRARY_PATH" else ":", os.environ.get(name, ""))
    kept = (
        entry for entry in entries if entry.startswith("/") and os.path.normpath(entry) not in here
    )
    return ":".join(kept)


def names_of_working_folder() -> frozenset[str]:
    """Return the kernel's name of the working folder, and the shell's, which may have links."""
    names = {os.environ.get("PWD", "")}
    with suppress(OSError):  # it was removed
        names.add(os.getcwd())  # noqa: PTH109 - a name to compare
    return frozenset(os.path.normpath(name) for name in names if name)
