"""Which rank is this process, and who launched it?

Read from the environment alone, so that it works before any import of torch. torchrun sets RANK,
LOCAL_RANK, WORLD_SIZE and TORCHELASTIC_RUN_ID; srun sets SLURM_PROCID, SLURM_LOCALID and
SLURM_NTASKS; Lightning's own launcher starts ranks 1.. with LOCAL_RANK, NODE_RANK and WORLD_SIZE
but no RANK, and only inside ``fit`` (lightning 2.6, strategies/launchers/subprocess_script.py).
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal, NamedTuple

    Launcher = Literal["torchrun", "slurm", "lightning", "environment", "none"]
else:
    from lightning_hangcheck.plain import NamedTuple


ROUND_COUNTS: dict[Launcher, str] = {
    "torchrun": "TORCHELASTIC_RESTART_COUNT",
    "slurm": "SLURM_RESTART_COUNT",
}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LARGEST, LONGEST = 1 << 20, 40  # a job's numbers (ranks, nodes, restarts, ports), and digits
MOST_NODES = 65_536  # of a SLURM job; SLURM's own limit, MAX_NODE_COUNT, is smaller
LAUNCHERS = frozenset(
    {
        *("accelerate", "accelerate.commands.accelerate_cli", "accelerate.commands.launch"),
        *("deepspeed", "deepspeed.launcher.launch", "deepspeed.launcher.runner", "fabric"),
        *("torch.distributed.launch", "torch.distributed.run", "torchrun"),
    }
)
"""Scripts and modules that start ranks."""
SLURM_SHELLS = ("bash", "interactive")
"""Job names for which Lightning ignores SLURM's variables (fabric's slurm.py)."""


class Identity(NamedTuple):
    """Which rank a process is, and how it was launched.

    Attributes:
        rank: Global rank; None while unknown.
        launcher: ``environment`` is any launcher that sets RANK and WORLD_SIZE (accelerate, MPI
            wrappers). ``none`` is a plainly started process: a single process, or the first process
            of a job whose other ranks Lightning starts later.
        round: How often the launcher had started the job's ranks before; None if unknown:
            TORCHELASTIC_RESTART_COUNT, SLURM_RESTART_COUNT.
        most_restarts: How often it will start them again at most; None if unknown.
        store_host: Host of the store that the ranks share: MASTER_ADDR.
        store_port: Port of that store: MASTER_PORT.
        agent_store: torchrun's agent serves that store, before any rank runs.
        told_nodes: Nodes of torchrun's group or of SLURM's step; None if unknown.
        first_host: MASTER_ADDR, else the first host of SLURM's step.
        problems: One sentence for each variable that could not be used.
    """

    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    launcher: Launcher = "none"
    round: int | None = None
    most_restarts: int | None = None
    store_host: str | None = None
    store_port: int | None = None
    agent_store: bool = False
    told_nodes: int | None = None
    first_host: str = ""
    problems: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Number of nodes that the ranks are on, as far as the launcher says; at least 1."""
        size, here = self.world_size, self.local_world_size
        return self.told_nodes or (-(-size // here) if self.peers_exist and size and here else 1)

    @property
    def ranks_here(self) -> int:
        """Ranks on this machine, as far as known: at least this rank."""
        return self.local_world_size or 1

    @property
    def all_here(self) -> bool:
        """Whether ranks that Lightning started meet on this machine: then all are here."""
        return not self.node_rank and self.store_host in (None, *LOOPBACK)

    @property
    def peers_exist(self) -> bool:
        """Whether a launcher has already started the other ranks, so that a barrier can succeed."""
        return self.launcher in ("torchrun", "slurm", "environment") and (self.world_size or 1) > 1


class NodePlace(NamedTuple):
    """Which of the job's nodes this one is, as its launcher's command or environment says.

    Attributes:
        number: 0 is the first node.
        nnodes: Number of nodes; 0 if unknown.
        host: Host, with ``port``, of the store that the first node's launcher serves; empty if
            none.
        ranks: Number of ranks there; 0 if unknown.
        job: Names the job for all its nodes; empty if the store alone does.
        machines: Number of machines of these nodes, if each of several tasks of a machine counts as
            a node; 0 if each node is a machine of its own.
        first: Address of the first node; empty if unknown.
    """

    number: int
    nnodes: int
    host: str = ""
    port: int = 0
    ranks: int = 0
    job: str = ""
    machines: int = 0
    first: str = ""


def identify(environment: Mapping[str, str]) -> Identity:
    """Work out the identity of the process with this environment. Never raises."""
    problems = []

    def read(name: str) -> int | None:
        text = environment.get(name)
        if text is None:
            return None
        if text.strip().isdecimal() and len(text) < LONGEST and int(text) < LARGEST:
            return int(text)
        problems.append(
            f"{name}={text[:LONGEST]!r} is not a whole number below {LARGEST:,}; unset it, or set "
            "it to the number that the launcher means"
        )
        return None

    rank, world_size = read("RANK"), read("WORLD_SIZE")
    local_rank, node_rank = read("LOCAL_RANK"), read("NODE_RANK")
    local_world_size, told_nodes, hosts = read("LOCAL_WORLD_SIZE"), None, ""
    launcher: Launcher = "none"
    step = "SLURM_PROCID" in environment and "SLURM_STEP_ID" in environment  # a shell has no step
    if "RANK" in environment:
        launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environment else "environment"
        if launcher == "torchrun" or node_rank is None:
            group, told_nodes = read("GROUP_RANK"), read("GROUP_WORLD_SIZE")
            node_rank = node_rank if group is None else group
    elif step and environment.get("SLURM_JOB_NAME") not in SLURM_SHELLS:
        launcher = "slurm"
        rank, world_size = read("SLURM_PROCID"), read("SLURM_NTASKS")
        local_rank, node_rank = read("SLURM_LOCALID"), read("SLURM_NODEID")
        local_world_size = _tasks_on(node_rank, environment)
        told_nodes = read("SLURM_STEP_NUM_NODES") or read("SLURM_NNODES")
        hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    elif local_rank is not None:
        launcher = "lightning"
        # on the first node the local rank is the global rank; elsewhere only `fit` knows
        rank = None if node_rank else local_rank
    # "node[007-012,20],gpu3" begins with node007
    shape = r"([\w.-]+)(?:\[(\d+)[\d,-]*\]([\w.-]*))?(?:,|$)"
    first = re.match(shape, hosts, re.ASCII) if hosts else None  # compiling takes 0.4 ms
    first_host = "".join(part or "" for part in first.groups()) if first is not None else ""
    return Identity(
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        node_rank=node_rank,
        launcher=launcher,
        round=read(ROUND_COUNTS[launcher]) if launcher in ROUND_COUNTS else None,
        most_restarts=read("TORCHELASTIC_MAX_RESTARTS") if launcher == "torchrun" else None,
        store_host=environment.get("MASTER_ADDR"),
        store_port=read("MASTER_PORT"),
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        told_nodes=told_nodes,
        first_host=environment.get("MASTER_ADDR") or first_host,
        problems=tuple(problems),
    )


def is_launcher(words: Iterable[str]) -> bool:
    """Whether a command line is that of a launcher, which trains nothing itself.

    As /proc has it: Python, its options, and a script or a module after ``-m``.
    """
    left = iter(words)
    program = next(left, "").rpartition("/")[2]
    for word in left if program.startswith("python") else ():
        if word in ("-W", "-X"):
            next(left, "")
        elif word[:1] != "-":
            return word.rpartition("/")[2] in LAUNCHERS
    return program in LAUNCHERS


def _tasks_on(node: int | None, environment: Mapping[str, str]) -> int | None:
    """Read the step's task count on a node: ``2(x3),1`` is 2 on each of three nodes, then 1."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", environment.get("SLURM_TASKS_PER_NODE", ""))
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?(?:,|$)", text, re.ASCII)
    nodes = [int(tasks) for tasks, times in found for _ in range(min(int(times or 1), MOST_NODES))]
    return nodes[node] if node is not None and node < len(nodes) else None
