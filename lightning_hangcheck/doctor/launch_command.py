"""Parses a launch command: launcher, number of ranks and nodes, script."""

from __future__ import annotations

import re
import shutil
from itertools import pairwise
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple

from lightning_hangcheck.identity import NodePlace
from lightning_hangcheck.session.session import place_of_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LauncherKind = Literal["torchrun", "accelerate", "slurm", "mpi", "python", "none"]


MODULE = ("-m", "--module")
_RANKS: dict[str, tuple[str, ...]] = {
    "torchrun": ("--nproc-per-node",),
    "accelerate": ("--num-processes",),
    "slurm": ("--ntasks", "-n"),
    "mpi": ("-n", "-np"),
}
"""By launcher: the option that says how many ranks there are; below, how many nodes."""
_NODES: dict[str, tuple[str, ...]] = {
    "torchrun": ("--nnodes",),
    "accelerate": ("--num-machines",),
    "slurm": ("--nodes", "-N"),
}
_COMMANDS: dict[str, LauncherKind] = {
    "torchrun": "torchrun",
    "srun": "slurm",
    "mpirun": "mpi",
    "mpiexec": "mpi",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
"""By name of the program, or of the module after ``python -m``."""
STARTERS = ("torchrun", "accelerate")
NO_SCRIPT = ("--no-python", "--run-path")
_PYTHON = re.compile(r"python[\d.]*")
DEFAULT_PORT = 29500  # Default of torchrun's --master-port, and of accelerate.
C10D_PORT = 29400  # Default port of --rdzv-endpoint (torch's c10d_rendezvous_backend.py).
_OF_ACCELERATE = {
    "nnodes": "num-machines",
    "node-rank": "machine-rank",
    "master-addr": "main-process-ip",
    "master-port": "main-process-port",
}
"""accelerate's names for options of torchrun, which it starts (accelerate/utils/launch.py)."""


class Launch(NamedTuple):
    """A parsed command.

    Attributes:
        launcher: ``python``: a program that starts its ranks itself, if it has any. ``none``: no
            command, or one that cannot be parsed.
        prefix: The words before the program: followed by another program, they start that.
        options: The launcher's options by name, with dashes instead of underscores.
        program: The words after the launcher: script and arguments; empty if there are none.
        local_ranks: Ranks per node; None if the command leaves it open.
    """

    launcher: LauncherKind = "none"
    prefix: tuple[str, ...] = ()
    options: Mapping[str, str] = {}
    program: tuple[str, ...] = ()
    local_ranks: int | None = None
    nodes: int = 1

    @property
    def script(self) -> str | None:
        """The Python file that is run, or None."""
        words = self.program
        if self.launcher in ("slurm", "mpi"):
            words = read_launch(words, {}).program
        return words[0] if words and words[0].endswith(".py") else None

    @property
    def ranks(self) -> int | None:
        """World size; None if the command leaves it open."""
        return None if self.local_ranks is None else self.local_ranks * self.nodes

    def argument(self, name: str) -> str | None:
        """Return the value of a program argument, ``--devices 2`` or ``--devices=2``."""
        return _options(self.program).get(name)


def split_endpoint(endpoint: str) -> tuple[str, str]:
    """Split ``HOST:PORT`` as torch does (rendezvous/utils.py): ``[::1]:29400``, ``[::1]``.

    Returns:
        The host without brackets, and the port, empty if missing.
    """
    host, port = endpoint.strip(), ""
    if not (host.startswith("[") and host.endswith("]")) and ":" in host:
        host, _, port = host.rpartition(":")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), port


def read_launch(command: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """Parse a command."""
    name = PurePath(command[0]).name if command else ""
    kind, start = _COMMANDS.get(name, "none"), 1
    if name == "accelerate" and "launch" in command[1:2]:
        kind, start = "accelerate", 2
    elif _PYTHON.fullmatch(name):
        kind = "python"
        for at, (word, following) in enumerate(pairwise(command)):
            if word == "-m" and "." in following and following in _COMMANDS:
                kind, start = _COMMANDS[following], at + 2
                break
    if kind == "none":
        return Launch()
    # an option may or may not take a value, so find the program itself
    rest = [(at, command[at]) for at in range(start, len(command))]
    paths = [(at, PurePath(word)) for at, word in rest if word[:1] != "-"]
    if kind == "python":
        valued = {at + 1 for at, word in rest if word in ("-W", "-X")}
        ends = [at for at, word in rest if word in ("-m", "-c")]
        ends += [at for at, _ in paths if at not in valued]
    elif kind in STARTERS:
        # what is no Python file stands behind a word that says so
        said = next(
            (at for at, word in rest if _spelt(word) in (*MODULE, *NO_SCRIPT)), len(command)
        )
        ends = [at for at, path in paths if at > said or path.suffix == ".py"]
    else:
        # a partition may be called `test` and a node `debug`, but hardly `python`
        known = [at for at, path in paths if path.name in STARTERS or _PYTHON.fullmatch(path.name)]
        ends = known[:1] or [at for at, path in paths if shutil.which(path)]
    end = min(ends, default=len(command))
    options = _options(command[start:end])
    of_program = MODULE if kind in STARTERS else ()
    prefix = (*command[:start], *(word for word in command[start:end] if word not in of_program))
    of_nodes, of_ranks = _NODES.get(kind, ()), _RANKS.get(kind, ())
    nodes, ranks = _number(options, of_nodes) or 1, _number(options, of_ranks)
    if kind == "slurm":  # srun takes what its options leave out from the allocation
        nodes = _number(options, of_nodes) or _number(environment, ("SLURM_NNODES",)) or 1
        tasks = ranks or _number(environment, ("SLURM_NTASKS",))
        per_node = _number(options, ("--ntasks-per-node",))
        ranks = per_node or (max(1, tasks // nodes) if tasks is not None else None)
    elif kind == "torchrun":
        ranks = 1 if ranks is None and "--nproc-per-node" not in options else ranks
    elif ranks is not None:
        ranks = max(1, ranks // nodes)
    return Launch(kind, prefix, options, tuple(command[end:]), ranks, nodes)


def _options(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word, following in pairwise((*words, "")):
        if word.startswith("-"):
            name, equals, value = _spelt(word).partition("=")
            found[name] = value if equals else "" if following.startswith("--") else following
    return found


def _spelt(word: str) -> str:
    """Use dashes in option names; torchrun and accelerate accept underscores as well."""
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def _number(given: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Return the number that an option gives; of a range ``1:4`` the largest."""
    texts = [given[name].rpartition(":")[2] for name in names if name in given]
    return next((int(text) for text in texts if text.isdecimal()), None)


class JobOfNodes(NamedTuple):
    """A job of several nodes, from the launcher's command and variables.

    Attributes:
        place: Which of the nodes this is; None for a job of one node, or if unknown. The ranks may
            know once they run (`session.place_of`).
        name: Name of the job, the same on all nodes, also if nodes have no number.
        store: Host and port where torchrun's agents meet in each round. Unlike the ranks' store, it
            stays the same when nodes are renumbered.
    """

    place: NodePlace | None = None
    name: str = ""
    store: tuple[str, int] = ("", 0)


def job_of_nodes(command: Sequence[str], environment: Mapping[str, str]) -> JobOfNodes:
    """Read torchrun's options and their variables (``PET_NNODES`` for ``--nnodes``).

    If neither numbers the node, SLURM may (``srun`` starts one torchrun per node). A program
    without a launcher may be a SLURM task.
    """
    launch = read_launch(command, environment)
    if launch.launcher not in ("torchrun", "accelerate"):
        return JobOfNodes(None if launch.launcher == "slurm" else place_of_task(environment))

    def said(name: str) -> str:
        if launch.launcher == "accelerate":
            return launch.options.get(f"--{_OF_ACCELERATE.get(name, name)}", "")
        variable = f"PET_{name.upper().replace('-', '_')}"
        return launch.options.get(f"--{name}") or environment.get(variable, "")

    # the store that the first node's torchrun serves; other rendezvous backends serve none
    backend, endpoint = said("rdzv-backend") or "static", said("rdzv-endpoint")
    default = C10D_PORT if backend == "c10d" else DEFAULT_PORT
    if backend == "static" and not endpoint:
        endpoint = f"{said('master-addr') or '127.0.0.1'}:{said('master-port') or default}"
    if backend not in ("static", "c10d") or "store_type=file" in said("rdzv-conf"):
        endpoint = ""
    host, text = split_endpoint(endpoint)
    port = int(text) if text.isdecimal() else 0 if text else default
    if not host or not (text or "0").isdecimal():
        host, port = "", 0
    nnodes = said("nnodes").rpartition(":")[2]
    number = said("node-rank") or environment.get("SLURM_NODEID", "")
    place = None
    if nnodes.isdecimal() and number.isdecimal() and int(number) < int(nnodes) > 1:
        place = NodePlace(number=int(number), nnodes=int(nnodes), host=host, port=port)
    if nnodes in ("", "0", "1") or not host:
        return JobOfNodes(place)
    return JobOfNodes(place, f"nodes-{said('rdzv-id')}-{host}-{port}", (host, port))
