"""run.json: what was run, where, and with what around it."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.round import Round


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
        job: Names the job for all processes that keep it here; empty where a command of ours does.
        versions: Of Python and of the distributions installed beside this package.
        world_size: Of the last round; so are the ranks.
        rounds: Each start of the job's ranks, the first one first.
        ended_at: None while it goes on.
        exit_code: Of the command, where `hangcheck run` started it.
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
