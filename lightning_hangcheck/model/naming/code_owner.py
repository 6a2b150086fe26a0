"""Whose code a file is, told by its path alone: evidence may come from another machine."""

from __future__ import annotations

import re
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
    (
        "alerts",
        "attach",
        "cli",
        "diagnosis",
        "doctor",
        "files",
        "gather",
        "hooks",
        "isolation",
        "launch",
        "ledger",
        "live_view",
        "machine",
        "model",
        "nodes",
        "observe",
        "planning",
        "probes",
        "reading",
        "recorder",
        "report",
        "rundir",
        "session",
        "smoke",
        "text",
        "watch",
        "__init__.py",
        "__main__.py",
        "errors.py",
        "identity.py",
        "log.py",
        "settings.py",
        "time_limit.py",
        "transformers.py",
        "version.py",
    )
)
"""What lies in this package's own folder, as a test of it holds: a project's folder may have the
same name, and what else lies in that is its owner's."""
EXAMPLE = "reference_script"
"""A wheel has the reference script, too. It stands for a user's script, and is told as one."""
TYPED_IN = re.compile(r"^<(ipython-input|python-input|stdin)")
"""What a person types into a notebook, a prompt or a pipe has no file, and is the user's."""
STANDARD = re.compile(r"^<|/lib(64)?/((python|pypy)3(\.\d+)?t?/|python3\d+\.zip/)")
INSTALLED = re.compile(r"/(?:site|dist)-packages/(?:[^/]+\.(?:egg|zip|whl)/)?([^/]+)")
SOURCES = re.compile(
    r"/(?:(torch)/(?:distributed|nn|utils|autograd|optim)|(lightning)/(?:pytorch|fabric)"
    r"|(pytorch_lightning)|(lightning_fabric)|(ipykernel)|(debugpy))/"
)
"""Frameworks that are used from their sources, or from an editor's own folder."""


MODULE = "<module>"
"""The outermost call of a program."""
TRAINING = frozenset(
    (
        "accelerate",
        "deepspeed",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "torch",
        "transformers",
    )
)
"""Packages of which a call is on the stack of a thread that trains, whoever wrote the loop."""


class Owner(Struct, frozen=True):
    """Whose a file is.

    Attributes:
        package: Of a framework, the installed package or module that the file belongs to; else
            empty.
    """

    kind: Kind
    package: str = ""


@lru_cache(maxsize=DISTINCT_FILES)
def owner_of(file: str) -> Owner:
    """Tell whose a file is.

    Args:
        file: Path as the interpreter knows it: absolute, relative, in a zip file, or a name in
            angle brackets where there is no file.

    Returns:
        ``framework`` for every installed package; ``standard`` for the interpreter's own library
        and what it generates; ``user`` for all else, a package installed in place included.
    """
    rooted = f"/{file}"
    part = _part_of_ours(rooted)
    if part in PARTS:
        return Owner("ours")
    if part == EXAMPLE or TYPED_IN.match(file):
        return Owner("user")
    installed = INSTALLED.search(rooted)
    if installed is not None:
        return Owner("framework", installed[1].removesuffix(".py"))
    if STANDARD.search(file):
        return Owner("standard")
    sources = SOURCES.search(rooted)
    if sources is not None:
        return Owner("framework", str(sources[sources.lastindex or 0]))
    return Owner("user")


def is_users(file: str) -> bool:
    """Whether a file is the user's own code."""
    return owner_of(file).kind == "user"


def only_serves(calls: Iterable[tuple[str, str]]) -> bool:
    """Whether a main thread is there for others, and the process trains in another one, if at all.

    It is within its program, but neither in the user's code nor in a framework that trains. One
    that has left its program waits for the other threads, and is on its way out.

    Args:
        calls: Function and file of each call on its stack.
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


def _part_of_ours(rooted: str) -> str:
    """What of this package holds the file, if the innermost folder of its name is this package."""
    return rooted.rpartition(f"/{PACKAGE}/")[2].partition("/")[0]
