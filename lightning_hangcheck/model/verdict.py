"""verdict.json, schema_version 1: the structs of the public contract, field by field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct, field

from lightning_hangcheck.model.slugs import Cause, Certainty, Phase, SeenIn, VerdictKind

if TYPE_CHECKING:
    from lightning_hangcheck.model import evidence

Confidence = Annotated[float, Meta(ge=0.0, le=1.0, description="0: a guess, 1: proven")]
Rank = Annotated[int, Meta(ge=0, description="global rank")]
Timestamp = Annotated[
    str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$", description="ISO 8601 UTC")
]
State = Literal["running", "waiting", "stalled", "stopped", "gone", "missing", "unseen"]

MOST_LISTED = 1_024
"""Ranks of any list of a verdict; where there are more, a gap counts them."""
MOST_RANKS = 2**20
"""Ranks that a job, or a text of ranges, may have: a file of others is refused before it fills the
memory."""
KnownRank = Annotated[int, Meta(ge=0, lt=MOST_RANKS)]
WorldSize = Annotated[int, Meta(ge=0, le=MOST_RANKS)]


class EvidenceItem(Struct, frozen=True):
    """One fact that the verdict rests on."""

    kind: str
    rank: Rank | None
    text: str


class Remedy(Struct, frozen=True):
    """What to do, with where to read on.

    Attributes:
        command: What can be typed or pasted for it, apart from the text; empty where nothing can.
    """

    text: str
    see: str
    command: str = ""

    @property
    def in_words(self) -> str:
        """The text with its command behind it."""
        return f"{self.text}: {self.command}" if self.command else self.text


class Edge(Struct, frozen=True, gc=False):
    """One arrow of the wait-for graph.

    Nodes: ``rank:3``, ``worker:3/0``, ``pid:123``, ``file:PATH``, ``host:ADDR:PORT``, ``key:NAME``.
    Where ranks of several hosts are in the job, ``pid:123@HOST``, and ``file:PATH@HOST`` of a file
    that is not on shared storage.
    """

    source: str = field(name="from")
    target: str = field(name="to")
    through: str


class Gap(Struct, frozen=True):
    """A fact too: what could not be seen, and why.

    Attributes:
        what: The missing evidence, for example ``"stack of pid 4711"``.
        rank: Whose, or None for the whole job or node.
        why: The reason in one sentence, with the way to allow it where there is one.
    """

    what: str
    rank: int | None
    why: str

    @classmethod
    def of(cls, missing: evidence.Gap) -> Gap:
        """Write what probes and rules recorded as missing."""
        return cls(missing.what, missing.rank, missing.reason)


class RankState(Struct, frozen=True, kw_only=True):
    """One row of the verdict's rank table; ``stack_group`` is an id of ``stack_groups``."""

    rank: Rank
    local_rank: int | None = None
    host: str = ""
    pid: int | None = None
    state: State = "running"
    phase: Phase | None = None
    last_checkpoint: LastCheckpoint | None = None
    open_sections: tuple[str, ...] = ()
    step: int | None = None
    stack_group: int | None = None


class LastCheckpoint(Struct, frozen=True):
    """The last numbered checkpoint of a rank."""

    number: int
    name: str
    at: str


class StackGroup(Struct, frozen=True, kw_only=True):
    """Equal stacks, merged. Frames are outermost first, each ``func (file:line)``."""

    id: int
    process: Literal["rank", "worker"]
    ranks: Annotated[str, Meta(description='rank ranges, for example "0-6,8"')]
    count: int
    frames: tuple[str, ...]


class CollectiveState(Struct, frozen=True, kw_only=True):
    """A process group on which the ranks disagree or wait.

    Attributes:
        ops: Operation to rank ranges, for example ``{"all_reduce [4] Float": "0-6"}``.
    """

    group: str
    ranks: str
    seq: int
    ops: dict[str, str]


class Verdict(Struct, frozen=True, kw_only=True):
    """The answer: culprit, cause, place, remedy, and all it rests on.

    Attributes:
        seen_in: How the evidence was had: `live`, `attach`, or `files` that were left behind.
        certainty: Of the culprits; a `guess` is told in the evidence, and culprits are empty then.
    """

    schema_version: Literal[1] = 1
    verdict: VerdictKind
    run_id: str
    command: str
    started_at: Timestamp
    detected_at: Timestamp
    stalled_since: Timestamp | None = None
    stalled_for_s: float = 0.0
    world_size: int
    nnodes: int = 1
    culprits: tuple[Rank, ...] = ()
    victims: tuple[Rank, ...] = ()
    cause: Cause | None = None
    phase: Phase | None = None
    confidence: Confidence = 0.0
    summary: str = ""
    evidence: tuple[EvidenceItem, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    gaps: tuple[Gap, ...] = ()
    wait_for: tuple[Edge, ...] = ()
    ranks: tuple[RankState, ...] = ()
    stack_groups: tuple[StackGroup, ...] = ()
    collectives: tuple[CollectiveState, ...] = ()
    seen_in: SeenIn | None = None
    certainty: Certainty | None = None
