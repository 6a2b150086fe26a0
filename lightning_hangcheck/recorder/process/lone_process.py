"""Is this process the only one of its job? As far as its surroundings and its own code tell.

A process that no launcher numbered may still be one of several: the first one of Lightning, which
starts the others inside ``fit``; a parent that is about to spawn ranks; one of several that were
started by hand, which takes its number from its arguments. So it counts as alone only where nothing
of that is in sight: no variable of a launcher, no framework that starts ranks, no word of its own
code that does. Where the code cannot be seen (a notebook, an installed program) it is not known.
"""

from __future__ import annotations

import re
import sys
from functools import cache, cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.model.naming.code_owner import is_users

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from lightning_hangcheck.identity import Identity

SIZES = (
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MV2_COMM_WORLD_SIZE",
    "MPI_LOCALNRANKS",
)
"""Say how many processes there are: torchrun's, SLURM's, those of Open MPI, MPICH and MVAPICH2."""
MEETING = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "GROUP_RANK", "JSM_NAMESPACE_RANK")
"""Of no use to a process that has no other to find."""
STARTERS = ("lightning", "pytorch_lightning", "lightning_fabric")
"""Packages that start the other ranks from the first one."""
SPEAKS_OF_OTHERS = re.compile(
    rb"\b(?:lightning|pytorch_lightning|lightning_fabric|multiprocessing|mp\.spawn|start_processes"
    rb"|notebook_launcher|elastic_launch|init_process_group|WORLD_SIZE|deepspeed|horovod|mpi4py"
    rb"|ray|import_module|__import__|runpy)\b"
)
"""What starts ranks or joins them, and what may bring in code that does."""
IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#]*)"
    rb"|import[ \t]+([^\n#]+))",
    re.MULTILINE,
)
NAME = re.compile(rb"\w+")
MOST_FILES = 64
"""Of the user's own code; a project that has more is not known to be alone."""
LARGEST_FILE = 1_000_000  # bytes


class LoneProcess:
    """This process, as the only one of its job or not.

    Args:
        environment: Of this process, as its launcher left it.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def is_alone(self, identity: Identity) -> bool:
        """Tell whether it is the only one of its job, as far as can be seen now.

        Under a millisecond for each file of its own code the first time, later under a microsecond.
        Never raises.

        Args:
            identity: Of this process, as far as it is known.
        """
        if identity.launcher != "none" or identity.rank is not None:
            return False
        return sys.modules.keys().isdisjoint(STARTERS) and self._was_started_alone

    @cached_property
    def _was_started_alone(self) -> bool:
        sizes = (self._environment.get(name, "1").strip() for name in SIZES)
        several = any(size != "1" for size in sizes)
        meets = any(name in self._environment for name in MEETING)
        return not several and not meets and _code_runs_alone()


@cache
def _code_runs_alone() -> bool:
    try:
        return not any(SPEAKS_OF_OTHERS.search(code) for code in _own_code())
    except Exception:  # noqa: BLE001 - others' import hooks may raise anything; then it is not known
        return False


def _own_code() -> Iterator[bytes]:
    """Read the script and all that it imports of the user's own.

    Raises:
        LookupError: Not all of it is found, or it is more than is looked at.
    """
    waiting, seen, read = [_script()], set[Path](), 0
    while waiting:
        file = waiting.pop()
        code = _read(file)
        if code is None and read:  # an imported name that is no module
            continue
        read += 1
        if code is None or len(code) == LARGEST_FILE or read > MOST_FILES:
            raise LookupError(file)
        yield code
        found = {one for name in _imported(code) for one in _files_of(name, file.parent)}
        waiting += found - seen
        seen |= found


def _read(file: Path) -> bytes | None:
    try:
        with file.open("rb") as opened:
            return opened.read(LARGEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _script() -> Path:
    main = sys.modules["__main__"]
    script = Path(main.__file__ or "")
    if script.parent == Path(sys.executable).parent or not is_users(str(script)):
        raise LookupError(script)  # an installed program: its code is not the user's
    return script


def _imported(code: bytes) -> Iterator[str]:
    """Dotted names, with as many dots in front as were written; what is no module among them."""
    for dots, package, names, modules in IMPORT.findall(code):
        for module in modules.split(b",") if modules else ():
            yield module.split()[0].decode()
        for name in NAME.findall(names):
            yield (dots + b".".join(filter(None, (package, name)))).decode()


def _files_of(name: str, folder: Path) -> list[Path]:
    """Where the user's own module of this name may lie, and the packages that it is in."""
    dotted = name.lstrip(".")
    parts = dotted.split(".")
    if dotted != name:
        root: Path | None = [folder, *folder.parents][len(name) - len(dotted) - 1]
    else:
        root = _root_of(parts[0])
    if root is None:
        return []
    modules = [root.joinpath(*parts[:many]) for many in range(1, len(parts) + 1)]
    return [one for path in modules for one in (path.with_suffix(".py"), path / "__init__.py")]


@cache
def _root_of(package: str) -> Path | None:
    """The folder that a package or module of the user's own lies in; None where it is no such."""
    if package in sys.stdlib_module_names:
        return None
    found = PathFinder.find_spec(package)
    if found is None:
        raise LookupError(package)
    place = found.origin or f"{next(iter(found.submodule_search_locations or ()))}/__init__.py"
    if not is_users(place):
        return None
    return Path(place).parents[found.submodule_search_locations is not None]
