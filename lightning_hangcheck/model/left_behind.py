"""What a case rests on that was read from files: which they were, and what they were taken for."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.log_facts import LogReading


class ReadFile(Struct, frozen=True, kw_only=True):
    """A file, and what it was taken for by its content.

    Attributes:
        kind: For example ``flight record``.
        ranks: Of whom it tells; none where that is not known.
    """

    path: str
    kind: str
    ranks: tuple[int, ...] = ()


class LeftOut(Struct, frozen=True):
    """A file that was not used, and why."""

    path: str
    why: str


class LeftBehind(Struct, frozen=True, kw_only=True):
    """What was left of a job that is gone.

    Attributes:
        read: Files that were used.
        left_out: Files that were not.
        world_size: Ranks of the job, as far as its process groups tell; 0 where they do not.
        logs: What its logs say.
    """

    read: tuple[ReadFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    world_size: int = 0
    logs: tuple[LogReading, ...] = ()
