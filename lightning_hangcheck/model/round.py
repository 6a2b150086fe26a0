"""Rounds: a launcher may start the job's ranks again; each start is a chapter of the run."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.slugs import Cause, VerdictKind


class Round(Struct, frozen=True, kw_only=True):
    """One start of the job's ranks.

    Attributes:
        number: 0 for the first.
        started_at: When its first rank was seen, ISO 8601 UTC.
        ended_at: None while it goes on; so are ``verdict`` and ``cause``.
        verdict: How it ended: ``crashed``, ``finished``, or the hang that was its end.
        culprits: As in a verdict.
        summary: How it ended, in one sentence; empty while it goes on.
    """

    number: int = 0
    started_at: str = ""
    world_size: int = 0
    ended_at: str | None = None
    verdict: VerdictKind | None = None
    culprits: tuple[int, ...] = ()
    cause: Cause | None = None
    summary: str = ""


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
