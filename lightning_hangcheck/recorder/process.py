"""The process that records: what it is, what it tells the recorder, and how one alone is known."""

from __future__ import annotations

import atexit
import os
import platform
import re
import sys
from functools import cache, cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.machine import ancestors
from lightning_hangcheck.model.beat import Beat
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.recorder.page import PageReader
from lightning_hangcheck.settings import PREFIX, Settings, read_option
from lightning_hangcheck.text.redaction import redact_values
from lightning_hangcheck.text.shown import DISTRIBUTIONS, published_environment, show_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from lightning_hangcheck.identity import Identity


class ProcessHooks:
    """Installs them once; a forked child inherits them.

    Args:
        on_uncaught: Told the exception that ends the program, before Python prints it.
        on_exit: Called when the interpreter begins to exit; may be called twice.
        on_fork: Called in a forked child before anything else runs in it.
    """

    def __init__(
        self,
        on_uncaught: Callable[[BaseException], object],
        on_exit: Callable[[], object],
        on_fork: Callable[[], object],
    ) -> None:
        self._on_uncaught = on_uncaught
        self._on_exit = on_exit
        self._on_fork = on_fork
        self._installed = False
        self._next_hook = sys.excepthook

    def install(self) -> None:
        """Install those that this process does not have yet."""
        if not self._installed:
            self._installed = True
            atexit.register(self._on_exit)
            os.register_at_fork(after_in_child=self._on_fork)
            self._next_hook, sys.excepthook = sys.excepthook, self._excepthook
        if is_multiprocessing_child():
            from multiprocessing.util import Finalize  # imported already in such a child

            Finalize(None, self._end_child, exitpriority=0)

    def _excepthook(
        self,
        kind: type[BaseException],
        error: BaseException,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._on_uncaught(error)
        finally:
            self._next_hook(kind, error, traceback)

    def _end_child(self) -> None:
        """Called in the ``finally`` of multiprocessing's bootstrap: the exception is at hand.

        From Python 3.13 on it is called later, and the exception is forgotten by then.
        """
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            # torch's wrapper answers an exception by sys.exit(1) from within its handler
            error = error.__context__ if error.code else None
        if error is not None:
            self._on_uncaught(error)
        self._on_exit()


def is_multiprocessing_child() -> bool:
    """Whether the multiprocessing module started this process, by fork, spawn or forkserver."""
    # such a child has imported it already; importing it here would cost every other process 10 ms
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def is_helper(pages: Path, identity: Identity) -> bool:
    """Whether an ancestor records, and this process has no rank of its own beside it.

    Ranks that Lightning starts from the first one have a LOCAL_RANK that differs from its own.
    """
    for pid in ancestors(os.getpid()):
        reader = PageReader(pages / f"{pid}.page")
        page = reader.read()
        reader.close()
        if isinstance(page, Beat):
            claimed = (identity.rank, identity.local_rank)
            return claimed in ((None, None), (page.rank, page.local_rank))
    return False


def start_facts(environment: Mapping[str, str], identity: Identity) -> dict[str, object]:
    """Gather who and where this process is, redacted. Imports nothing."""
    return {
        "rank": identity.rank,
        "world_size": identity.world_size,
        "local_rank": identity.local_rank,
        "round": identity.round,
        "launcher": identity.launcher,
        "host": os.uname().nodename,
        "command": show_command(sys.orig_argv),
        "folder": _working_folder(),
        "versions": versions(),
        "environment": redact_values(published_environment(environment)),
    }


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of the frameworks that are imported by now."""
    modules = [name.replace("-", "_") for name in DISTRIBUTIONS]
    found = {
        name: str(getattr(sys.modules[name], "__version__", "unknown"))
        for name in modules
        if sys.modules.get(name) is not None
    }
    return {"python": platform.python_version(), **found}


def _working_folder() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return ""


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Read the options that the environment sets; says each bad one once and never raises."""
    values: dict[str, object] = {}
    for option in msgspec.structs.fields(Settings):
        text = environment.get(PREFIX + option.name.upper())
        if not text:
            continue
        try:
            values[option.name] = read_option(option.name, text)
        except BadUsage as problem:
            log.once(f"option-{option.name}", f"{problem}; taking the default, {option.default}")
    return msgspec.convert(values, Settings)


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
    """This process, as the only one of its job or not."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def is_alone(self, identity: Identity) -> bool:
        """Tell whether it is the only one of its job, as far as can be seen now.

        Under a millisecond for each file of its own code the first time, later under a microsecond.
        Never raises.
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
