"""What is started: a Python of our own, in which only what is installed can be imported.

``python -m`` would put the working folder first on the path of modules, and PYTHONPATH next: a
``queue.py`` there would be taken for the standard library's. So a file of ours is run by its path,
in an environment without any variable of Python's. It loads this package from where it lies, and
dependencies from where the process that starts it has them.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from lightning_hangcheck.isolation.environment import names_of_working_folder, own_environment

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
    counts only if this process has itself imported something from there under that name.

    Returns:
        The folder, an entry of the path of modules; None where there is none, or where something
        else than a path finds it (an editable installation), which will do so in the new process.
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
    offered = {os.path.normpath(os.path.join(top, one)) for top in here for one in named if one}  # noqa: PTH118
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    offered.add(os.path.dirname(os.path.normpath(script)))  # noqa: PTH120 - a name to compare
    entries = [os.path.normpath(entry) for entry in sys.path if entry.startswith("/")]
    away = [entry for entry in entries if entry not in here]
    return [
        *(entry for entry in away if entry not in offered),
        *(entry for entry in away if entry in offered),
        *(here if dependency in sys.modules else ()),
    ]
