"""Whose code a file is, told by its path alone: evidence may come from another machine."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterable


Kind = Literal["user", "framework", "standard", "ours"]

DISTINCT_FILES = 65_536
"""Files remembered: a job of 1,024 ranks has a few hundred; beyond this the oldest are dropped."""
PACKAGE = __name__.partition(".")[0]
PARTS = frozenset(
    {"alerts.py", "attach", "cli", "doctor", "files", "hooks", "isolation", "judge", "launch"}
    | {"ledger", "lint", "live_view", "look", "model", "nodes", "observe", "planning"}
    | {"postmortem", "recorder", "rehearse.py", "report", "session", "smoke.py", "text", "watch"}
    | {"__init__.py", "__main__.py", "errors.py", "identity.py", "log.py", "machine.py"}
    | {"rundir.py", "settings.py", "time_limit.py", "transformers.py", "version.py"}
)
"""What lies in this package's own folder, as a test of it holds: a project's folder may have the
same name, and what else lies in that is its owner's."""
EXAMPLE = "reference_script"
"""A wheel has the reference script, too. It stands for a user's script, and is told as one."""
TYPED_IN = re.compile(r"^<(ipython-input|python-input|stdin)")
"""What a person types into a notebook, a prompt or a pipe has no file, and is the user's."""
STANDARD = re.compile(r"/lib(?:64)?/(?:(?:python|pypy)3(?:\.\d+)?t?|python3\d+\.zip)/([^/]+)")
MODULES = sys.stdlib_module_names | {
    *("annotationlib", "asyncore", "compression", "distutils", "imp", "profiling"),
}
"""Of the interpreter's library, also what other Python versions have than the one that judges."""
INSTALLED = re.compile(
    r"/(?:site|dist)-packages/(?:[^/]+\.(?:egg|zip|whl)/)?([^/]+)|\.(?:egg|whl)/([^/]+)"
)
GENERATED = re.compile(r"/torchinductor_[^/]*/|/\.?triton/cache/")
"""Code that torch's compiler writes, for nobody to read."""
SOURCES = re.compile(
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
"""Packages of which a call is on the stack of a thread that trains, whoever wrote the loop."""


RUNNERS = TRAINING | {
    *("coverage", "dask", "debugpy", "distributed", "ipykernel", "ipykernel_launcher"),
    *("pytest", "ray"),
}
"""Installed programs that run other people's code: that is the user's, not theirs."""
COMMAND_LINES = frozenset(("absl", "click", "fire", "hydra", "jsonargparse", "typer"))
"""Through which a program's own command line calls it."""


class Owner(Struct, frozen=True):
    """Whose a file is; of a framework's, the installed package or module that it belongs to."""

    kind: Kind
    package: str = ""


@lru_cache(maxsize=DISTINCT_FILES)
def owner_of(file: str) -> Owner:
    """Tell whose a file is, by its path as the interpreter knows it.

    ``framework`` is every installed package; ``standard`` the interpreter's own library and what it
    generates; ``user`` all else, a package installed in place included.
    """
    rooted = f"/{file}"
    # what of this package holds it, if the innermost folder of its name is this package
    part = rooted.rpartition(f"/{PACKAGE}/")[2].partition("/")[0]
    if part in PARTS:
        return Owner("ours")
    if part == EXAMPLE or TYPED_IN.match(file):
        return Owner("user")
    installed = INSTALLED.search(rooted)
    if installed is not None:
        return Owner("framework", str(installed[installed.lastindex or 0]).removesuffix(".py"))
    library = STANDARD.search(file)
    if file.startswith("<") or (library and library[1].removesuffix(".py") in MODULES):
        return Owner("standard")
    if GENERATED.search(rooted):
        return Owner("framework", "torch")
    sources = SOURCES.search(rooted)
    if sources is not None:
        return Owner("framework", str(sources[sources.lastindex or 0]))
    return Owner("user")


def is_users(file: str, program: str = "") -> bool:
    """Whether a file is the user's own code, or of the package that `program_of` gave."""
    owner = owner_of(file)
    return owner.kind == "user" or (bool(program) and owner.package == program)


def program_of(calls: Iterable[tuple[str, str]]) -> str:
    """Return the installed package that a process was started to run; empty for a user's script.

    ``python -m package`` runs a module of it, a console script calls it. Whatever a user starts is
    meant as a program of the user's own, wherever it lies. ``calls``: function and file of each
    call of its main thread, outermost first.
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
    """Whether a main thread is there for others, and the process trains in another one, if at all.

    It is within its program, but neither in the user's code nor in a framework that trains. One
    that has left its program waits for the other threads, and is on its way out. ``calls``:
    function and file of each call on its stack.
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
