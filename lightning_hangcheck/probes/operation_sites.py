"""From where each recorded operation was called: the record's clock beside the rank's own notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lightning_hangcheck.model.flight import CallSite, CollectiveRecord, FlightRecord
    from lightning_hangcheck.session.collectives.call_sites import NotedCall


def with_sites(
    flight: FlightRecord, calls: Sequence[NotedCall], sites: Mapping[int, CallSite]
) -> FlightRecord:
    """Add to each operation of a rank the place that it was called from.

    Args:
        flight: As recorded.
        calls: Noted by the rank, oldest first.
        sites: Their places, by number.
    """
    found = _sites_of(flight.groups, calls)
    groups = tuple(
        replace(
            group,
            entries=tuple(
                replace(entry, site=found.get((group.group, entry.seq), 0))
                for entry in group.entries
            ),
        )
        for group in flight.groups
    )
    often = Counter(call.site for call in calls if call.site in sites)
    used = {site: called for site, called in sites.items() if site in set(found.values())}
    return replace(
        flight,
        groups=groups,
        sites=used,
        reduced=max((often[site] for site in often if sites[site].reduction), default=0),
        repeated=max((often[site] for site in often if not sites[site].root), default=0),
    )


def _sites_of(
    groups: Sequence[CollectiveRecord], calls: Sequence[NotedCall]
) -> dict[tuple[str, int], int]:
    """Find the call of each operation, by its group and number.

    A call is noted just before it enters its operation, in the same thread: the first that follows
    is it. What C++ enters (DDP's reducer) has no call.
    """
    entered = sorted(
        (entry.created_ns, entry.thread, group.group, entry.seq)
        for group in groups
        for entry in group.entries
    )
    waiting: dict[int, NotedCall] = {}
    found: dict[tuple[str, int], int] = {}
    left = list(reversed(calls))
    for created_ns, thread, group, seq in entered:
        while left and left[-1].at_ns <= created_ns:
            call = left.pop()
            waiting[call.thread] = call
        own = thread or max(waiting, key=lambda one: waiting[one].at_ns, default=0)
        if own in waiting:
            found[group, seq] = waiting.pop(own).site
    return found
