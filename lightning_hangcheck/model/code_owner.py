"""Tells whose code a file is, by its path alone: evidence may come from another machine."""

from __future__ import annotations

import re
import sys
from functools import lru_cache

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, NamedTuple

    Kind = Literal["user", "framework", "standard", "ours"]
else:
    from lightning_hangcheck.plain import NamedTuple


DISTINCT_FILES = 65_536
"""Files remembered: a job of 1,024 ranks has a few hundred; beyond this the oldest are dropped."""
PACKAGE = __name__.partition(".")[0]
PARTS = frozenset(
    {"alerts.py", "attach", "cli", "doctor", "files.py", "hooks", "isolation", "judge", "launch"}
    | {"ledger", "lint", "live_view", "look", "model", "nodes", "observe", "planning"}
    | {"postmortem", "recorder", "rehearse.py", "report", "session", "smoke.py", "text", "watch"}
    | {"__init__.py", "__main__.py", "errors.py", "identity.py", "log.py", "machine.py"}
    | {"plain.py"}
    | {"rundir.py", "settings.py", "time_limit.py", "transformers.py", "version.py"}
)
"""What is in this package's own folder, as a test ensures. A project's folder may have the same
name; everything else in it belongs to the project."""
EXAMPLE = "reference_script"
"""The wheel contains the reference script; it stands for a user's script and counts as one."""
TYPED_IN = r"<(ipython-input|python-input|stdin)"
"""Code typed into a notebook, a prompt or a pipe has no file, and is the user's."""
STANDARD = r"/lib(?:64)?/(?:(?:python|pypy)3(?:\.\d+)?t?|python3\d+\.zip)/([^/]+)"
MODULES = sys.stdlib_module_names | {
    *("annotationlib", "asyncore", "compression", "distutils", "imp", "profiling"),
}
"""Modules of the standard library, also of other Python versions than the judging one."""
INSTALLED = r"/(?:site|dist)-packages/(?:[^/]+\.(?:egg|zip|whl)/)?([^/]+)|\.(?:egg|whl)/([^/]+)"
GENERATED = r"/torchinductor_[^/]*/|/\.?triton/cache/"
"""Code that torch's compiler writes."""
SOURCES = (
    r"/(?:(torch)/(?:distributed|nn|utils|autograd|optim)|(lightning)/(?:pytorch|fabric)"
    r"|(pytorch_lightning)|(lightning_fabric)|(ipykernel)|(debugpy))/"
)
"""Frameworks that are used from their sources, or from an editor's own folder."""


MODULE = "<module>"
"""The outermost call of a program."""
TRAINING = frozenset(
    {"accelerate", "deepspeed", "lightning", "lightning_fabric", "pytorch_lightning", "torch"}
    | {"transformers"}
)
"""Packages that are on the stack of a thread that trains, whoever wrote the loop."""


RUNNERS = TRAINING | {
    *("coverage", "dask", "debugpy", "distributed", "ipykernel", "ipykernel_launcher"),
    *("pytest", "ray"),
}
"""Installed programs that run other people's code: that code is the user's."""
COMMAND_LINES = frozenset(("absl", "click", "fire", "hydra", "jsonargparse", "typer"))
"""Packages through which a program's own command line calls the program."""


class Owner(NamedTuple):
    """Whose a file is; for a framework, the installed package or module that has the file."""

    kind: Kind
    package: str = ""


@lru_cache(maxsize=DISTINCT_FILES)
def owner_of(file: str) -> Owner:
    """Tell whose a file is, by its path as the interpreter knows it.

    ``framework`` is every installed package; ``standard`` the interpreter's own library and what it
    generates; ``user`` all else, a package installed in place included.
    """
    rooted = f"/{file}"
    # the part of this package with the file, if the innermost folder of that name is ours
    part = rooted.rpartition(f"/{PACKAGE}/")[2].partition("/")[0]
    if part in PARTS:
        return Owner("ours")
    if part == EXAMPLE or re.match(TYPED_IN, file):
        return Owner("user")
    installed = re.search(INSTALLED, rooted)
    if installed is not None:
        return Owner("framework", str(installed[installed.lastindex or 0]).removesuffix(".py"))
    library = re.search(STANDARD, file)
    if file.startswith("<") or (library and library[1].removesuffix(".py") in MODULES):
        return Owner("standard")
    if re.search(GENERATED, rooted):
        return Owner("framework", "torch")
    sources = re.search(SOURCES, rooted)
    if sources is not None:
        return Owner("framework", str(sources[sources.lastindex or 0]))
    return Owner("user")


def is_users(file: str, program: str = "") -> bool:
    """Whether a file is the user's own code, or of the package that `program_of` returned."""
    owner = owner_of(file)
    return owner.kind == "user" or (bool(program) and owner.package == program)


def program_of(calls: Iterable[tuple[str, str]]) -> str:
    """Return the installed package that a process was started to run; empty for a user's script.

    ``python -m package`` runs a module of it, a console script calls it. What a user starts counts
    as the user's own program, wherever it is installed. ``calls``: function and file of each call
    of its main thread, outermost first.
    """
    by_script = False
    for function, file in calls:
        owner = owner_of(file)
        if owner.kind == "standard" or (by_script and owner.package in COMMAND_LINES):
            continue
        if function == MODULE and owner.kind == "user" and "." not in file.rpartition("/")[2]:
            by_script = True
        elif function == MODULE or by_script:
            return owner.package if owner.package not in RUNNERS else ""
        else:
            break
    return ""


def only_serves(calls: Iterable[tuple[str, str]]) -> bool:
    """Whether a main thread serves other threads; if the process trains, another thread does.

    It is within its program, but neither in the user's code nor in a framework that trains. A main
    thread that has left its program waits for the other threads to exit. ``calls``: function and
    file of each call on its stack.
    """
    calls = tuple(calls)
    in_program = any(function == MODULE for function, _ in calls)
    owners = [owner_of(file) for _, file in calls]
    return in_program and not any(
        owner.kind == "user" or owner.package in TRAINING for owner in owners
    )


def is_ours(file: str) -> bool:
    """Whether a file belongs to this package."""
    return owner_of(file).kind == "ours"


def is_standard(file: str) -> bool:
    """Whether a file belongs to the interpreter: its library, or a frame without a file."""
    return owner_of(file).kind == "standard"
