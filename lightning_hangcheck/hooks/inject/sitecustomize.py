"""Python runs this at the start of every process below `hangcheck run`: it makes ranks record.

A process that is no rank pays well under a millisecond and goes on as if this were not here, and
whatever else is called sitecustomize is run after this.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

_FOLDER = str(Path(__file__).parent)
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate")
_RANK_NAMES = ("RANK", "LOCAL_RANK", "SLURM_PROCID")


def _is_rank() -> bool:
    """Whether a launcher started this process as a rank, as far as can be told without imports.

    What a rank itself starts inherits its environment: those say so by the mark that it left, and
    children of multiprocessing by their command line.
    """
    environment = os.environ
    if environment.get("HANGCHECK_DISABLE") in ("1", "true", "yes"):
        return False
    names = [name for name in _RANK_NAMES if name in environment]
    if not names or "HANGCHECK_SESSION" not in environment:
        return False
    words = sys.orig_argv[1:4]
    if any("multiprocessing" in word or word.rpartition("/")[2] in _LAUNCHERS for word in words):
        return False
    mark = "/".join(environment.get(name, "") for name in _RANK_NAMES)
    known = environment.get("HANGCHECK_RANK_PROCESS", "").partition(":")
    if known[2] == mark and known[0] != str(os.getpid()):
        return False
    environment["HANGCHECK_RANK_PROCESS"] = f"{os.getpid()}:{mark}"
    return True


def _run_next() -> None:
    """Run the sitecustomize that this one hides, with this folder out of its way."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None or spec.origin == __file__:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if _is_rank():
    try:
        from lightning_hangcheck.hooks.zero_code import start
    except ImportError:  # this interpreter has not installed the package; it is not ours to watch
        pass
    else:
        start()
_run_next()
