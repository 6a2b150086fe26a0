"""run.json: what was run, where, and with what around it.

Rounds: a launcher may start the job's ranks again; each start is a chapter of the run.
"""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.slugs import Cause, VerdictKind


class RankPlace(Struct, frozen=True, kw_only=True):
    """Which process was a rank."""

    rank: int
    host: str = ""
    pid: int | None = None


class Round(Struct, frozen=True, kw_only=True):
    """One start of the job's ranks, numbered from 0.

    Attributes:
        started_at: When its first rank was seen.
        ended_at: None while it goes on; so are ``verdict`` and ``cause``.
        verdict: How it ended: ``crashed``, ``finished``, or the hang that was its end.
        summary: How it ended, in one sentence; empty while it goes on.
        ranks: Where its ranks were, as far as this node saw them.
    """

    number: int = 0
    started_at: str = ""
    world_size: int = 0
    ended_at: str | None = None
    verdict: VerdictKind | None = None
    culprits: tuple[int, ...] = ()
    cause: Cause | None = None
    summary: str = ""
    ranks: tuple[RankPlace, ...] = ()


class RoundStart(Struct, frozen=True, kw_only=True):
    """Who started the ranks of a round, as far as their environment tells.

    Attributes:
        launcher: ``torchrun``, ``slurm``; empty where nothing says who.
        number: How often it had started the job's ranks before, by its own count; of what follows a
            round, None where that was not counted: torchrun does not count a change of nodes.
        most: How often it will start them again at most.
    """

    launcher: str = ""
    number: int | None = None
    most: int | None = None


class RankRecord(Struct, frozen=True, kw_only=True):
    """One rank as it was started. The environment is redacted, and only what training reads."""

    rank: int
    local_rank: int | None = None
    host: str = ""
    pid: int
    environment: dict[str, str] = {}


class NodePlace(Struct, frozen=True, kw_only=True):
    """Which of the job's nodes this one is, as its launcher's command or environment says.

    Attributes:
        number: 0 is the first node.
        nnodes: How many there are; 0 where nothing says so.
        host: Of the store that the launcher of the first node serves, as the port; empty where it
            serves none.
        ranks: How many ranks run there; 0 where nothing says so.
        job: Names the job for all its nodes; empty where the store alone does.
        machines: How many these nodes are on, where each of several tasks of a machine counts as a
            node of its own; 0 where each has its own.
        first: Address of the first node; empty where nothing says it.
    """

    number: int
    nnodes: int
    host: str = ""
    port: int = 0
    ranks: int = 0
    job: str = ""
    machines: int = 0
    first: str = ""


class RunRecord(Struct, frozen=True, kw_only=True):
    """The run as a whole.

    Attributes:
        job: Names the job for all processes that keep it here; empty where a command of ours does.
        versions: Of Python and of the distributions installed beside this package.
        world_size: Of the last round; so are the ranks.
        rounds: Each start of the job's ranks, the first one first.
        ended_at: None while it goes on.
        exit_code: Of the command, where `hangcheck run` started it.
        ended_by: Who asked for the end: ``SIGINT from the terminal``; empty where nobody did.
        machine: On which its processes have their ids, as `machine.which_machine` names it; empty
            where none is watched, or none is known.
        node: Number of this one among the job's nodes, as it was last; None for one node.
        meeting: Where the sidecars of the job's nodes meet, and why there; empty for one node.
    """

    schema_version: int = 1
    run_id: str
    command: str
    started_at: str
    job: str = ""
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    versions: dict[str, str] = {}
    ranks: tuple[RankRecord, ...] = ()
    rounds: tuple[Round, ...] = ()
    ended_at: str | None = None
    exit_code: int | None = None
    ended_by: str = ""
    meeting: str = ""
    machine: str = ""
    node: int | None = None
