"""Where the sidecars of a job's nodes meet, and why there."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.nodes.encoding import MOST_PACKED
from lightning_hangcheck.nodes.meeting_place import FolderPlace
from lightning_hangcheck.nodes.store_place import CourierPlace

if TYPE_CHECKING:
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.nodes.meeting_place import MeetingPlace
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings


def meeting_of(place: NodePlace, settings: Settings) -> MeetingPlace | None:
    """Return where the nodes of a job meet; None where there is no such place."""
    if settings.nodes_dir is not None:
        # two jobs may be given one folder
        job = hashlib.sha256(f"{place.host}:{place.port}:{place.nnodes}".encode()).hexdigest()[:12]
        return FolderPlace(Path(settings.nodes_dir).absolute() / f"hangcheck-{job}", MOST_PACKED)
    return CourierPlace(place.host, place.port) if place.host else None


def why_there(session: Session, settings: Settings) -> str:
    """Say for run.json where this job's nodes meet, and why; empty for a job of one node."""
    place = session.facts.node
    if place is None:
        return ""
    which = f"this is node {place.number} of {place.nnodes}"
    meeting = meeting_of(place, settings)
    if meeting is None:
        return f"nowhere: torchrun serves no store that its command names, no --nodes-dir; {which}"
    why = "--nodes-dir names it" if settings.nodes_dir else "the command names it, no --nodes-dir"
    return f"{meeting.where}: {why}; {which}"
