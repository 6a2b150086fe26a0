"""What the lines of a ledger tell together: each phase from its first line to its last. Pure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from lightning_hangcheck.ledger.fingerprints import Fingerprint
from lightning_hangcheck.ledger.records import (
    Begun,
    Discarded,
    Ended,
    Measured,
    Place,
    Reused,
    Run,
)
from lightning_hangcheck.machine.process_stat import is_alive

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from lightning_hangcheck.ledger.book import Pages
    from lightning_hangcheck.ledger.records import AnyLine

Status = Literal["running", "done", "failed", "interrupted", "unknown"]


class PhaseStory(Struct, frozen=True, kw_only=True):
    """One phase.

    Attributes:
        status: ``interrupted``: its process is gone and told no end. ``unknown``: it told no end,
            and ran on another host.
        duration_s: None where nothing tells; of one that told no end, what it is known to have
            lasted at least.
        deciding: Name of the metric that says whether it went well; empty for the only one.
        ask_from: As in `Begun`.
        reused: How often it was used instead of being run again.
        discarded: Why what it made does not count any more; empty while it does.
        stale: Why what it made is there, but of an older version than what it rests on.
        offloaded: As in `Ended`.
    """

    id: str
    name: str
    status: Status
    begun_at: str
    place: Place
    duration_s: float | None = None
    cpu_s: float = 0.0
    deciding: str = ""
    ask_from: float | None = None
    metrics: dict[str, float] = {}
    error: str = ""
    inputs: tuple[Fingerprint, ...] = ()
    outputs: tuple[Fingerprint, ...] = ()
    reused: int = 0
    discarded: str = ""
    stale: str = ""
    offloaded: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether what it made can be used."""
        return self.status == "done" and not self.discarded

    @property
    def metric(self) -> tuple[str, float] | None:
        """The metric that says whether it went well, None where that was not recorded."""
        if self.deciding:
            value = self.metrics.get(self.deciding)
            return None if value is None else (self.deciding, value)
        return next(iter(self.metrics.items())) if len(self.metrics) == 1 else None

    @property
    def asked_about(self) -> bool:
        """Whether a person wants to be asked before what it made is lost or made stale."""
        measured = self.metric
        return self.ask_from is not None and (measured is None or measured[1] >= self.ask_from)

    def made_same(self, outputs: Collection[Fingerprint]) -> bool:
        """Whether it made just these files, with this content, as far as that is known."""
        made = {one.path: one.digest for one in self.outputs}
        known = bool(made) and all(made.values())
        return known and made == {one.path: one.digest for one in outputs}


class Story(Struct, frozen=True, kw_only=True):
    """All phases and runs, the first one first. This is also what ``state.json`` holds.

    Attributes:
        unreadable: Lines of the ledger that were skipped.
    """

    schema_version: int = 1
    phases: tuple[PhaseStory, ...] = ()
    runs: tuple[Run, ...] = ()
    unreadable: int = 0

    def last_done(self, name: str, outputs: Collection[str] | None = None) -> PhaseStory | None:
        """Return the newest phase of this name that counts.

        Args:
            name: Of the phase.
            outputs: Only one that made files of just these paths; None for any.
        """
        for one in reversed(self.phases):
            fits = outputs is None or _paths(one) == set(outputs)
            if one.name == name and one.counts and fits:
                return one
        return None

    def resting_on(self, phase: PhaseStory) -> tuple[PhaseStory, ...]:
        """Return what was made from this one's files, directly or not, and is not stale yet."""
        made = _paths(phase)
        found: list[PhaseStory] = []
        # an earlier run of it may have made the same: what rests on that rests on this one
        same = (
            at
            for at, one in enumerate(self.phases)
            if one.id == phase.id or (one.name == phase.name and one.made_same(phase.outputs))
        )
        for later in self.phases[next(same, -1) + 1 :]:
            if later.id == phase.id or not later.counts:
                continue
            if any(_is_within(one.path, made) for one in later.inputs):
                found.append(later)
                made |= _paths(later)
        return tuple(one for one in found if not one.stale)


def tell(pages: Pages, alive: Callable[[Place], bool | None] | None = None) -> Story:
    """Put a ledger's lines together.

    Args:
        pages: As read.
        alive: Whether the process of a phase is there, None where that cannot be known.
    """
    phases: dict[str, PhaseStory] = {}
    runs: list[Run] = []
    for line in pages.lines:
        if isinstance(line, Run):
            runs.append(line)
        elif isinstance(line, Begun):
            phases[line.id] = _begin(line)
        elif isinstance(line, Discarded):
            if line.id in phases:
                phases[line.id] = _set_aside(phases[line.id], line, phases.get(line.by))
        elif line.id in phases:
            phases[line.id] = _go_on(phases[line.id], line)
    ask = alive or process_alive
    return Story(
        phases=tuple(_with_end(phase, ask) for phase in phases.values()),
        runs=tuple(runs),
        unreadable=pages.unreadable,
    )


def process_alive(place: Place) -> bool | None:
    """Whether the process of a phase is there; None where it is another host's."""
    return is_alive(place.pid, place.started_ticks) if place.host == os.uname().nodename else None


def _begin(line: Begun) -> PhaseStory:
    return PhaseStory(
        id=line.id,
        name=line.phase,
        status="running",
        begun_at=line.at,
        place=line.place,
        deciding=line.deciding,
        ask_from=line.ask_from,
        inputs=line.inputs,
    )


def _go_on(phase: PhaseStory, line: AnyLine) -> PhaseStory:
    if isinstance(line, Measured):
        return replace(
            phase, metrics={**phase.metrics, **line.metrics}, duration_s=max(0.0, line.after_s)
        )
    if isinstance(line, Ended):
        return replace(
            phase,
            status="failed" if line.error else "done",
            duration_s=max(0.0, line.duration_s),
            cpu_s=line.cpu_s,
            error=line.error,
            metrics={**phase.metrics, **line.metrics},
            outputs=line.outputs,
            offloaded=line.offloaded,
        )
    return replace(phase, reused=phase.reused + 1) if isinstance(line, Reused) else phase


def _set_aside(phase: PhaseStory, line: Discarded, by: PhaseStory | None) -> PhaseStory:
    """Run again, its files were replaced; where another phase was, they are only stale."""
    if by is None or (by.name == phase.name and _paths(by) == _paths(phase)):
        return replace(phase, discarded=line.why)
    return replace(phase, stale=phase.stale or line.why)


def _paths(phase: PhaseStory) -> set[str]:
    return {output.path for output in phase.outputs}


def _with_end(phase: PhaseStory, alive: Callable[[Place], bool | None]) -> PhaseStory:
    if phase.status != "running":
        return phase
    there = alive(phase.place)
    if there is None:
        return replace(phase, status="unknown")
    return phase if there else replace(phase, status="interrupted")


def _is_within(path: str, made: set[str]) -> bool:
    """Whether a file is one that was made, lies in a folder that was, or holds one."""
    return any(
        path == one or path.startswith(f"{one}/") or one.startswith(f"{path}/") for one in made
    )
