"""Python runs this at the start of every process below `hangcheck run`: it makes ranks record.

A process that is no rank loses far less than 1 ms, and any other sitecustomize runs after this
file. A process that may become a rank (a plainly started script, a child of multiprocessing) loses
no more until it imports a framework.
"""

import gc
import os
import sys
from importlib.machinery import PathFinder

# every process pays for these imports: typing would take 4 ms, pathlib and importlib.util 16 ms
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec

_FOLDER = os.path.dirname(__file__)  # noqa: PTH120 - see above
_RANK_NAMES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
_FRAMEWORKS = frozenset(
    {"accelerate", "datasets", "lightning", "lightning_fabric", "pytorch_lightning", "torch"}
    | {"transformers", "wandb"}
)


def _mark() -> str:
    return "/".join(os.environ.get(name, "") for name in _RANK_NAMES)


def _role() -> str:
    """Return what this process is, as far as known without imports.

    Processes that a rank starts inherit its environment. They are recognised by the marks that the
    rank left, children of multiprocessing by their command line.

    Returns:
        ``rank``, ``script`` (started plainly: rank 0 of Lightning, or a single process), ``child``
            (of multiprocessing: mostly a helper, unless it joins a process group), or ``stranger``.
            A launcher may look like the first two.
    """
    environment, pid = os.environ, str(os.getpid())
    disabled = environment.get("HANGCHECK_DISABLE") in ("1", "true", "yes")
    if disabled or "HANGCHECK_SESSION" not in environment:
        return "stranger"
    if environment.get("HANGCHECK_JOINED", pid) != pid:
        return "stranger"
    if any(word.startswith("from multiprocessing.") for word in sys.orig_argv):
        return "child"
    known = environment.get("HANGCHECK_RANK_PROCESS", "").partition(":")
    if known[2] == _mark() and known[0] not in ("", pid):
        return "stranger"
    if known[0] == pid and not _in_main_interpreter():
        return "stranger"
    return "rank" if any(name in environment for name in _RANK_NAMES) else "script"


def _in_main_interpreter() -> bool:
    """Whether this process was replaced (execve), and is not just another interpreter."""
    # Our threads in a second interpreter would keep it, and so the process, from ending.
    import importlib

    for name in ("_interpreters", "_xxsubinterpreters"):  # the first name is that of Python 3.13
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        return bool(interpreters.get_current() == interpreters.get_main())
    return True


def _uncollected(act: "Callable[[], None]") -> None:
    """Keep the garbage collector out of our imports."""
    # It runs after a number of new objects: ours moved a full collection into the import of torch,
    # where it has ten times as many objects to visit (about 100 ms).
    collecting = gc.isenabled()
    gc.disable()
    try:
        act()
    except ImportError:  # not installed for this interpreter, so it is not watched
        return
    finally:
        if collecting:
            gc.enable()


class _Process:
    """This process: waits for the first import of a framework; without one it pays nothing."""

    def __init__(self) -> None:
        self.role = _role()

    def record(self) -> None:
        from lightning_hangcheck.identity import is_launcher

        if is_launcher(sys.orig_argv):
            self.role = "stranger"
            return
        from lightning_hangcheck.hooks.being_watched import start

        os.environ["HANGCHECK_RANK_PROCESS"] = f"{os.getpid()}:{_mark()}"
        start()

    def watch(self) -> None:
        from lightning_hangcheck.hooks.zero_code.groups import watch

        watch(is_child=self.role == "child")

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        if name not in _FRAMEWORKS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        if self.role == "script":
            _uncollected(self.record)
        if self.role != "stranger":
            _uncollected(self.watch)
        from importlib.util import find_spec

        return find_spec(name)


def _run_next() -> None:
    """Run the sitecustomize that this file hides, with this folder removed from the path."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    # the same as importlib.util's, which takes 7 ms
    from importlib._bootstrap import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = _Process()
if _here.role == "rank":
    _uncollected(_here.record)
    # the script has no objects yet, and ours stay: during imports of frameworks, full collections
    # would visit ours again and again
    gc.freeze()
if _here.role != "stranger":
    sys.meta_path.insert(0, _here)
_run_next()
