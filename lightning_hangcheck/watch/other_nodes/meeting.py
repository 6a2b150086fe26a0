"""Which of the job's nodes this is, as soon as anything says it; where they meet, and why there.

The launcher's command may say it before any rank runs. Else a rank tells it, with each round anew:
torchrun's agents number themselves afresh when they meet again.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.nodes.encoding import MOST_PACKED
from lightning_hangcheck.nodes.meeting_place import FolderPlace, SealedPlace
from lightning_hangcheck.nodes.peers import FIRST
from lightning_hangcheck.nodes.store_place import CourierPlace
from lightning_hangcheck.rundir import NODES_FOLDER
from lightning_hangcheck.session.whose import place_of
from lightning_hangcheck.settings import LEAST_SECRET, SHARED_BY_NODES
from lightning_hangcheck.text.shown import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.nodes.meeting_place import NodesPlace
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

NO_STORE = "the launcher serves no store that outlives the ranks"


class Nowhere(NamedTuple):
    """Why there is no place to meet, and what would make one."""

    why: str
    way_out: str


UNNAMED = Nowhere(
    f"{NO_STORE}, and no folder was named that all nodes see",
    "name one with --nodes-dir, or give all nodes the same --run-dir on storage that they share, "
    "or have the first node serve a store with --nodes-port, or join the verdicts with hangcheck "
    "merge",
)
NO_SECRET = Nowhere(
    f"{NO_STORE}, and --nodes-port needs a secret that all nodes know",
    f"export {SHARED_BY_NODES}=$(openssl rand -hex 16) where the job is started",
)
NO_ADDRESS = Nowhere(
    f"{NO_STORE}, and for --nodes-port nothing says where the first node is",
    "set MASTER_ADDR on all nodes",
)


Choice = tuple["NodesPlace", str]
"""A place to meet, and why it was chosen."""


def meetings_of(place: NodePlace, settings: Settings) -> tuple[NodesPlace, ...]:
    """Return where the nodes of a job meet; nothing where there is no such place, or one node.

    Behind a store comes the folder in which they go on when it is lost, where one is known.
    """
    choice = choose(place, settings)
    if choice is None or isinstance(choice, Nowhere):
        return ()
    if isinstance(choice[0], FolderPlace) or settings.run_dir is None:
        return choice[:1]
    return choice[0], _folder(Path(settings.run_dir) / NODES_FOLDER, place)


def why_there(place: NodePlace, settings: Settings) -> str:
    """Say for run.json where this job's nodes meet, and why; empty for a job of one node."""
    choice = choose(place, settings)
    if choice is None:
        return ""
    which = f"this is node {place.number} of {place.nnodes}"
    if isinstance(choice, Nowhere):
        return f"nowhere: {choice.why}; {which}"
    return f"{choice[0].where}: {choice[1]}; {which}"


def why_moved(place: NodePlace, settings: Settings, folder: str) -> str:
    """Say for run.json where the nodes go on beside the store in which they met."""
    return f"{folder}, since a node lost the store; first {why_there(place, settings)}"


def choose(place: NodePlace, settings: Settings) -> Choice | Nowhere | None:
    """What was named for it, else a store that is there, else one to be served, else a folder."""
    if place.nnodes == 1:
        return None
    if settings.nodes_dir is not None:
        return _folder(settings.nodes_dir, place), "--nodes-dir names it"
    if place.host:
        return CourierPlace(place.host, place.port), "it is there, and no --nodes-dir"
    offered = _offered(place, settings.nodes_port) if settings.nodes_port is not None else UNNAMED
    if not isinstance(offered, Nowhere) or settings.run_dir is None:
        return offered
    why = "no store that outlives the ranks, no --nodes-dir; the nodes were given one --run-dir"
    return _folder(Path(settings.run_dir) / NODES_FOLDER, place), why


def _offered(place: NodePlace, port: int) -> Choice | Nowhere:
    """The store that the first node's sidecar serves; nothing there counts without a seal."""
    secret = os.environ.get(SHARED_BY_NODES, "")
    if len(secret) < LEAST_SECRET:
        return NO_SECRET
    if not place.first:
        return NO_ADDRESS
    store = CourierPlace(place.first, port, offered=True, serves=place.number == FIRST)
    why = "no store that outlives the ranks, no --nodes-dir; --nodes-port has one served"
    return SealedPlace(store, secret, _job(place)), why


def _folder(named: str | Path, place: NodePlace) -> FolderPlace:
    """A folder of this job alone: two jobs may be given one."""
    mark = hashlib.sha256(_job(place).encode()).hexdigest()[:12]
    return FolderPlace(Path(named).absolute() / f"hangcheck-{mark}", MOST_PACKED)


def _job(place: NodePlace) -> str:
    return place.job or f"{place.host}:{place.port}"


EVERY_NS = NANOSECONDS // 2


class LatePlace:
    """Looks for the place of this node."""

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._place: NodePlace | None = None
        self._looked_ns = 0

    def news(self, now_ns: int) -> NodePlace | None:
        """Return the place where it was not known, or was another, when last asked."""
        if self._looked_ns and now_ns - self._looked_ns < EVERY_NS:
            return None
        self._looked_ns = now_ns
        place, known = place_of(self._session), self._place
        if place is None or (known is None and place.nnodes == 1):
            return None
        if known is not None and replace(place, ranks=known.ranks) == known:
            return None  # nothing changed for the other nodes
        self._place = place
        without = choose(place, self._settings)
        if isinstance(without, Nowhere) and not self._settings.quiet:
            log.once(
                "nowhere to meet",
                f"this is node {place.number} of {place.nnodes}, and the nodes do not meet: "
                f"{without.why}, so each gives a verdict of its own; {without.way_out}",
            )
        return place
