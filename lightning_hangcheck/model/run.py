"""run.json: what was run, where, and in what environment.

Rounds: a launcher may start the job's ranks again; each start is a round of the run.
"""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.slugs import Cause, VerdictKind
from lightning_hangcheck.model.verdict import WorldSize


class RankPlace(Struct, frozen=True, kw_only=True):
    """Which process was a rank."""

    rank: int
    host: str = ""
    pid: int | None = None


class Round(Struct, frozen=True, kw_only=True):
    """One start of the job's ranks, numbered from 0.

    Attributes:
        started_at: When its first rank was seen.
        ended_at: None while it runs; likewise ``verdict`` and ``cause``.
        verdict: How it ended: ``crashed``, ``finished``, or the hang that ended it.
        summary: How it ended, in one sentence; empty while it runs.
        ranks: Where its ranks ran, as far as this node saw them.
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
    """Who started the ranks of a round, as far as their environment says.

    Attributes:
        launcher: ``torchrun``, ``slurm``; empty if unknown.
        number: How often it had started the job's ranks before, by its own count. Of what follows a
            round, None if not counted: torchrun does not count a change of nodes.
        most: How often it will start them again, at most.
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


class RunRecord(Struct, frozen=True, kw_only=True):
    """The run as a whole.

    Attributes:
        job: Names the job for all processes that keep it here; empty if a command of ours keeps it.
        versions: Versions of Python and of the distributions installed with this package.
        world_size: Of the last round; ``ranks`` likewise.
        rounds: Each start of the job's ranks, the first one first.
        ended_at: None while it runs.
        exit_code: Of the command, if `hangcheck run` started it.
        ended_by: Who asked for the end: ``SIGINT from the terminal``; empty if nobody did.
        machine: Machine on which its processes have their ids, named by `machine.which_machine`;
            empty if none is watched, or none is known.
        node: Last number of this node among the job's nodes; None for one node.
        meeting: Where the sidecars of the job's nodes meet, and why there; empty for one node.
    """

    schema_version: int = 1
    run_id: str
    command: str
    started_at: str
    job: str = ""
    world_size: WorldSize = 0
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
