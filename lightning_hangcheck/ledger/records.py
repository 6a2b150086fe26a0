"""The lines of the ledger. Each is written once and never changed; the last one may be torn."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.ledger.fingerprints import Fingerprint
from lightning_hangcheck.ledger.stalls import Stall
from lightning_hangcheck.model.case import PhaseTime


class Line(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """What every line has.

    Attributes:
        id: Of what is told: a phase's later lines carry the id of its first.
        at: When it was written, ISO 8601 UTC by the wall clock; durations never rest on it.
    """

    schema_version: int = 1
    id: str
    at: str


class Place(Struct, frozen=True, kw_only=True):
    """Where a phase ran.

    Attributes:
        started_ticks: With ``pid`` and ``host`` it names the process for ever.
        ranks: How many share the phase; each of them is paid for.
        gpus: Models, as the driver names them; empty where none is seen.
        commit: Of the working folder; empty where that is no git repository.
        dirty: Whether files there differ from the commit; None where that was not learnt.
    """

    host: str
    pid: int
    started_ticks: int = 0
    ranks: int = 1
    cpu: str = ""
    cores: int = 0
    gpus: tuple[str, ...] = ()
    commit: str = ""
    dirty: bool | None = None
    command: str = ""


class Begun(Line, frozen=True, kw_only=True, tag="begin"):
    """A phase begins.

    Attributes:
        deciding: Name of the metric that says whether it went well; empty for the only one.
        ask_from: A person is asked before what it made is lost or made stale, unless its metric is
            below this; None where nobody is to be asked.
    """

    phase: str
    place: Place
    deciding: str = ""
    ask_from: float | None = None
    inputs: tuple[Fingerprint, ...] = ()


class Measured(Line, frozen=True, kw_only=True, tag="metric"):
    """A phase told metrics while it went on: what is known of it if it is killed."""

    after_s: float
    metrics: dict[str, float]


class Ended(Line, frozen=True, kw_only=True, tag="end"):
    """A phase ended.

    Attributes:
        duration_s: By the monotonic clock.
        cpu_s: Processor time of its process and of the children that it waited for.
        error: What left its block, in one line; empty where it ended well.
        offloaded: What of models was kept outside the GPU, as its process told when it loaded them.
    """

    duration_s: float
    cpu_s: float = 0.0
    error: str = ""
    metrics: dict[str, float] = {}
    outputs: tuple[Fingerprint, ...] = ()
    offloaded: tuple[str, ...] = ()


class Reused(Line, frozen=True, kw_only=True, tag="reuse"):
    """A phase was not run again; ``id`` is the phase's that made what is used."""

    phase: str
    why: str


class Discarded(Line, frozen=True, kw_only=True, tag="discarded"):
    """What a phase made was replaced, or what it was made from was; ``id`` is that phase's.

    Attributes:
        by: Id of the phase that was run: this one again, or one that it rests on.
    """

    phase: str
    by: str
    why: str


class Run(Line, frozen=True, kw_only=True, tag="run"):
    """A watched run ended; written by the sidecar.

    Attributes:
        duration_s: By the monotonic clock, from the sidecar's start.
        ranks: Of the last round.
        spent: Seconds by phase, summed over the ranks of the sidecar's node.
        offloaded: As in `Ended`, by the journals of its ranks.
    """

    run_id: str
    command: str
    started_at: str
    duration_s: float
    ranks: int
    host: str = ""
    gpus: tuple[str, ...] = ()
    verdict: str = ""
    exit_code: int | None = None
    spent: tuple[PhaseTime, ...] = ()
    stalls: tuple[Stall, ...] = ()
    offloaded: tuple[str, ...] = ()


AnyLine = Begun | Measured | Ended | Reused | Discarded | Run
