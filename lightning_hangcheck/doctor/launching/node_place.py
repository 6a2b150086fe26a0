"""Which of the job's nodes is this one, and where is the store that its launcher serves?

Said by the command, before any rank runs. What it leaves open the ranks tell once they are there:
`session.node_place`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.launching.launch import read_launch, split_endpoint
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.session.node_place import place_of_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Said = Callable[[str], str]

DEFAULT_PORT = 29500
"""Of torchrun, for --master-port; of accelerate, too."""
C10D_PORT = 29400
"""Of an --rdzv-endpoint without one (torch's c10d_rendezvous_backend.py)."""
_OF_ACCELERATE = {
    "nnodes": "num-machines",
    "node-rank": "machine-rank",
    "master-addr": "main-process-ip",
    "master-port": "main-process-port",
}
"""What accelerate calls torchrun's options, which it starts (accelerate/utils/launch.py)."""


def node_place(command: Sequence[str], environment: Mapping[str, str]) -> NodePlace | None:
    """Read the launcher's options, and the variables that stand for them.

    torchrun takes ``PET_NNODES`` for ``--nnodes`` and so on. Where neither numbers the node, SLURM
    may (``srun`` starts one torchrun a node). A program without a launcher may be a SLURM task.

    Args:
        command: Of the job, on this node.
        environment: Of that command.

    Returns:
        None for a job of one node, and where nothing says which node this is.
    """
    said = _options(command, environment)
    if said is None:
        of_slurm = read_launch(command, environment).launcher == "slurm"
        return None if of_slurm else place_of_task(environment)
    nnodes = said("nnodes").rpartition(":")[2]
    number = said("node-rank") or environment.get("SLURM_NODEID", "")
    if not (nnodes.isdecimal() and number.isdecimal() and int(number) < int(nnodes) > 1):
        return None
    host, port = _store(said)
    return NodePlace(number=int(number), nnodes=int(nnodes), host=host, port=port)


def job_of_nodes(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Name the job as its launchers on all nodes are told it, also where none has a number.

    Args:
        command: Of the job, on this node.
        environment: Of that command.

    Returns:
        Empty for a job of one node, and where nothing names it.
    """
    said = _options(command, environment)
    if said is None or said("nnodes").rpartition(":")[2] in ("", "0", "1"):
        return ""
    host, port = _store(said)
    return f"nodes-{said('rdzv-id')}-{host}-{port}" if host else ""


def launchers_store(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of the store where torchrun's agents meet, in each round again.

    Unlike that of the ranks, it stays the same when nodes are numbered anew.

    Args:
        command: Of the job, on this node.
        environment: Of that command.

    Returns:
        An empty host where the command names none, or the job has one node.
    """
    named = bool(job_of_nodes(command, environment))
    said = _options(command, environment)
    return _store(said) if named and said is not None else ("", 0)


def _options(command: Sequence[str], environment: Mapping[str, str]) -> Said | None:
    """What torchrun is told by option or variable; None where it is not started."""
    launch = read_launch(command, environment)

    def said(name: str) -> str:
        if launch.launcher == "accelerate":
            return launch.options.get(f"--{_OF_ACCELERATE.get(name, name)}", "")
        variable = f"PET_{name.upper().replace('-', '_')}"
        return launch.options.get(f"--{name}") or environment.get(variable, "")

    return said if launch.launcher in ("torchrun", "accelerate") else None


def _store(said: Said) -> tuple[str, int]:
    """The store that the first node's torchrun serves; others' rendezvous backends serve none."""
    backend = said("rdzv-backend") or "static"
    endpoint = said("rdzv-endpoint")
    if backend not in ("static", "c10d") or "store_type=file" in said("rdzv-conf"):
        return "", 0
    if not endpoint:
        if backend == "c10d":
            return "", 0
        endpoint = f"{said('master-addr') or '127.0.0.1'}:{said('master-port') or DEFAULT_PORT}"
    host, port = split_endpoint(endpoint)
    if not port:
        return host, C10D_PORT if backend == "c10d" else DEFAULT_PORT
    return (host, int(port)) if port.isdecimal() else ("", 0)
