"""Which of the job's nodes is this one, and where is the store that its launcher serves?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.doctor.launching.launch import read_launch
from lightning_hangcheck.model.run import NodePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

DEFAULT_PORT = 29500
"""Of torchrun, for --master-port and --rdzv-endpoint alike."""


def node_place(command: Sequence[str], environment: Mapping[str, str]) -> NodePlace | None:
    """Read torchrun's options, and the variables that stand for them.

    torchrun takes ``PET_NNODES`` for ``--nnodes`` and so on. Where neither numbers the node, SLURM
    may (``srun`` starts one torchrun a node).

    Args:
        command: Of the job, on this node.
        environment: Of that command.

    Returns:
        None for a job of one node, and where nothing says which node this is.
    """
    launch = read_launch(command, environment)
    if launch.launcher != "torchrun":
        return None

    def said(name: str) -> str:
        variable = f"PET_{name.upper().replace('-', '_')}"
        return launch.options.get(f"--{name}") or environment.get(variable, "")

    nnodes = said("nnodes").rpartition(":")[2]
    number = said("node-rank") or environment.get("SLURM_NODEID", "")
    if not (nnodes.isdecimal() and number.isdecimal() and int(number) < int(nnodes) > 1):
        return None
    host, port = _store(said)
    return NodePlace(number=int(number), nnodes=int(nnodes), host=host, port=port)


def _store(said: Callable[[str], str]) -> tuple[str, int]:
    """The store that the first node's torchrun serves; others' rendezvous backends serve none."""
    backend = said("rdzv-backend") or "static"
    endpoint = said("rdzv-endpoint")
    if backend not in ("static", "c10d"):
        return "", 0
    if not endpoint:
        if backend == "c10d":
            return "", 0
        endpoint = f"{said('master-addr') or '127.0.0.1'}:{said('master-port') or DEFAULT_PORT}"
    host, _, port = endpoint.rpartition(":")
    if not host:
        return port, DEFAULT_PORT
    return (host.strip("[]"), int(port)) if port.isdecimal() else ("", 0)
