"""Where the sidecars of a job's nodes meet, and why there."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.nodes.encoding import MOST_PACKED
from lightning_hangcheck.nodes.meeting_place import FolderPlace
from lightning_hangcheck.nodes.store_place import CourierPlace
from lightning_hangcheck.rundir.layout import NODES_FOLDER

if TYPE_CHECKING:
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.nodes.meeting_place import MeetingPlace
    from lightning_hangcheck.settings import Settings

NOWHERE = (
    "the launcher serves no store that outlives the ranks, and no folder was named that all nodes "
    "see"
)
WAY_OUT = (
    "name one with --nodes-dir, or give all nodes the same --run-dir on storage that they share, "
    "or join the verdicts with hangcheck merge"
)


class Choice(NamedTuple):
    """A place to meet, and why it was chosen."""

    meeting: MeetingPlace
    why: str


def meeting_of(place: NodePlace, settings: Settings) -> MeetingPlace | None:
    """Return where the nodes of a job meet; None where there is no such place, or one node."""
    choice = _choose(place, settings)
    return choice.meeting if choice is not None else None


def why_there(place: NodePlace, settings: Settings) -> str:
    """Say for run.json where this job's nodes meet, and why; empty for a job of one node."""
    if place.nnodes == 1:
        return ""
    which = f"this is node {place.number} of {place.nnodes}"
    choice = _choose(place, settings)
    if choice is None:
        return f"nowhere: {NOWHERE}; {which}"
    return f"{choice.meeting.where}: {choice.why}; {which}"


def _choose(place: NodePlace, settings: Settings) -> Choice | None:
    """A folder that was named for it, else a store that is there, else a run folder that may be."""
    if place.nnodes == 1:
        return None
    if settings.nodes_dir is not None:
        return Choice(_folder(settings.nodes_dir, place), "--nodes-dir names it")
    if place.host:
        return Choice(CourierPlace(place.host, place.port), "it is there, and no --nodes-dir")
    if settings.run_dir is not None:
        folder = Path(settings.run_dir) / NODES_FOLDER
        why = "no store that outlives the ranks, no --nodes-dir; the nodes were given one --run-dir"
        return Choice(_folder(folder, place), why)
    return None


def _folder(named: str | Path, place: NodePlace) -> FolderPlace:
    """A folder of this job alone: two jobs may be given one."""
    job = place.job or f"{place.host}:{place.port}"
    mark = hashlib.sha256(job.encode()).hexdigest()[:12]
    return FolderPlace(Path(named).absolute() / f"hangcheck-{mark}", MOST_PACKED)
