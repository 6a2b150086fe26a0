"""This node's place among the others, as soon as anything says it, and when it changes.

The launcher's command may say it before any rank runs. Else a rank tells it, with each round anew:
torchrun's agents number themselves afresh when they meet again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.session.node_place import place_of
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.watch.other_nodes.meeting_choice import nowhere

if TYPE_CHECKING:
    from lightning_hangcheck.model.run import NodePlace
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.settings import Settings

EVERY_NS = NANOSECONDS // 2


class LatePlace:
    """Looks for the place of this node.

    Args:
        session: Of the job.
        settings: In force.
    """

    def __init__(self, session: Session, settings: Settings) -> None:
        self._session = session
        self._settings = settings
        self._place: NodePlace | None = None
        self._looked_ns = 0

    def news(self, now_ns: int) -> NodePlace | None:
        """Return the place where it was not known, or was another, when last asked.

        Args:
            now_ns: Present time.
        """
        if self._looked_ns and now_ns - self._looked_ns < EVERY_NS:
            return None
        self._looked_ns = now_ns
        place, known = place_of(self._session), self._place
        alone = known is None and place is not None and place.nnodes == 1
        if place is None or alone or _is_same(place, known):
            return None
        self._place = place
        without = nowhere(place, self._settings)
        if without is not None and not self._settings.quiet:
            log.once(
                "nowhere to meet",
                f"this is node {place.number} of {place.nnodes}, and the nodes do not meet: "
                f"{without.why}, so each gives a verdict of its own; {without.way_out}",
            )
        return place


def _is_same(place: NodePlace, known: NodePlace | None) -> bool:
    """Whether nothing changed for the other nodes."""
    return known is not None and replace(place, ranks=known.ranks) == known
