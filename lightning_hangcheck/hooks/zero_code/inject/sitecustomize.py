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
_LAUNCHERS = (
    "accelerate", "accelerate.commands.accelerate_cli", "accelerate.commands.launch", "deepspeed",
    "deepspeed.launcher.launch", "deepspeed.launcher.runner", "fabric",
    "torch.distributed.launch", "torch.distributed.run", "torchrun",
)  # fmt: skip
_RANK_NAMES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")
_FRAMEWORKS = frozenset(
    {"accelerate", "datasets", "lightning", "lightning_fabric", "pytorch_lightning", "torch"}
    | {"transformers", "wandb"}
)


def _mark() -> str:
    return "/".join(os.environ.get(name, "") for name in _RANK_NAMES)


def _program() -> str:
    """Return the script, module or code that this interpreter was told to run."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        elif word[:1] != "-":
            return word
        elif word[1:2] not in "WX-" and word[-1] in "mc":
            return next(words, "")
    return ""


def _role() -> str:
    """Return what this process is, as far as known without imports.

    Processes that a rank starts inherit its environment. They are recognised by the marks that the
    rank left, children of multiprocessing by their command line.

    Returns:
        ``rank``, ``script`` (started plainly: rank 0 of Lightning, or a single process), ``child``
            (of multiprocessing: mostly a helper, unless it joins a process group), or ``stranger``.
    """
    environment, pid = os.environ, str(os.getpid())
    disabled = environment.get("HANGCHECK_DISABLE") in ("1", "true", "yes")
    if disabled or "HANGCHECK_SESSION" not in environment:
        return "stranger"
    if environment.get("HANGCHECK_JOINED", pid) != pid:
        return "stranger"
    program = _program()
    if program.startswith("from multiprocessing."):
        return "child"
    if program.rpartition("/")[2] in _LAUNCHERS:
        return "stranger"
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


def _record() -> None:
    from lightning_hangcheck.hooks.zero_code.start import start

    os.environ["HANGCHECK_RANK_PROCESS"] = f"{os.getpid()}:{_mark()}"
    start()


class _FirstImport:
    """Waits for the first import of a framework; a process without frameworks pays nothing."""

    def __init__(self, role: str) -> None:
        self._role = role

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> "ModuleSpec | None":
        if name not in _FRAMEWORKS or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        if self._role == "script":
            _uncollected(_record)
        _uncollected(self._watch)
        from importlib.util import find_spec

        return find_spec(name)

    def _watch(self) -> None:
        from lightning_hangcheck.hooks.zero_code.watched_calls import watch

        watch(is_child=self._role == "child")


def _run_next() -> None:
    """Run the sitecustomize that this file hides, with this folder removed from the path."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_here = _role()
if _here == "rank":
    _uncollected(_record)
    # the script has no objects yet, and ours stay: during imports of frameworks, full collections
    # would visit ours again and again
    gc.freeze()
if _here != "stranger":
    sys.meta_path.insert(0, _FirstImport(_here))
_run_next()
