"""A named meeting point of ranks, before any process group exists, with a time limit.

The first rank of a circle collects the others and posts one outcome, so every rank goes on, or
raises the same error. A rank that gives up leaves word too: who comes later learns it at once.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.circle import Circle, find_circle
from lightning_hangcheck.model.ranges import format_ranks
from lightning_hangcheck.recorder.recording import current

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.hooks.meeting_places import MeetingPlace

GRACE = 5.0  # seconds that the others wait longer, so that the first rank's verdict reaches them
FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.1  # seconds between two looks
LONGEST_NAME = 100  # of a file; Linux allows 255 bytes, quoting and number included

_meetings: Counter[str] = Counter()
"""How often each name was met in this process: ranks walk the same guards in the same order."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the first rank, or one that gave up, tells the others.

    Attributes:
        failure: What went wrong, in one clause; empty if all went well.
        remedy: The way out, in one clause.
        payloads: What each rank brought, by its index.
    """

    failure: str = ""
    remedy: str = ""
    payloads: dict[int, bytes] = {}

    def unwrap(self) -> dict[int, bytes]:
        """Return the payloads.

        Raises:
            MeetingFailed: The outcome is a failure.
        """
        if self.failure:
            raise MeetingFailed(self.failure, self.remedy)
        return self.payloads


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One meeting: the n-th of its name in this start of the job."""

    circle: Circle
    name: str
    key: str
    time_limit: float

    def arrival(self, index: int) -> str:
        """Key under which a rank leaves what it brought."""
        return f"{self.key}/arrived-{index}"

    @property
    def outcome(self) -> str:
        """Key under which the first rank leaves the outcome."""
        return f"{self.key}/outcome"

    @property
    def given_up(self) -> str:
        """Key under which a rank leaves word that it waits no longer."""
        return f"{self.key}/given-up"


def next_point(circle: Circle, name: str, time_limit: float) -> Point:
    """Open the next meeting of this name.

    Args:
        circle: Who meets.
        name: The same on all ranks, at most about 100 characters.
        time_limit: Seconds that each rank waits at most.
    """
    plain = quote(name, safe=" ")[:LONGEST_NAME]
    _meetings[plain] += 1
    key = f"{circle.noun} {plain} {_meetings[plain]}"
    return Point(circle=circle, name=name, key=key, time_limit=time_limit)


def meet(
    name: str, time_limit: float, payload: bytes = b"", circle: Circle | None = None
) -> dict[int, bytes]:
    """Wait until all ranks have come to the point of this name.

    Under Lightning's own launchers the first rank runs before the others exist: it does not wait,
    and the others read what it left.

    Args:
        name: The same on all ranks; may be met any number of times.
        time_limit: Seconds that a rank waits; all but the first wait `GRACE` longer, for its word.
        payload: What this rank brings.
        circle: Who meets; by default all ranks of the job.

    Returns:
        What each rank brought, by rank. Without anybody to meet, only this rank's own, as rank 0.

    Raises:
        MeetingFailed: Ranks did not come in time: which, where, and after how long.
    """
    circle = circle or find_circle(current())
    if circle is None:
        return {0: payload}
    point = next_point(circle, name, time_limit)
    if circle.index == 0:
        return _lead(point, payload)
    circle.place.post(point.arrival(circle.index), payload)
    return hear(point, partial(_absence, point), GRACE).unwrap()


def wait(place: MeetingPlace, keys: Sequence[str], deadline: float) -> tuple[str, bytes] | None:
    """Wait until one of the keys is posted. The diagnosis knows a rank in a guard by this frame.

    Args:
        place: Where to look.
        keys: The first that is found counts.
        deadline: On the clock of time.monotonic.

    Returns:
        The key and its value; None after the deadline.
    """
    pause = FIRST_PAUSE
    while True:
        for key in keys:
            value = place.look(key)
            if value is not None:
                return key, value
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def tell(point: Point, outcome: Outcome) -> None:
    """Post the outcome, as the first rank.

    Raises:
        MeetingFailed: The place cannot be written while others wait for it. Where they don't exist
            yet, that is said once instead: a single process needs no meeting.
    """
    try:
        point.circle.place.post(point.outcome, msgspec.msgpack.encode(outcome))
    except MeetingFailed as error:
        if point.circle.peers_exist:
            raise
        log.once("meeting-post", f"{error}. Ranks that start later will wait in vain")


def hear(point: Point, explain_absence: Callable[[], Outcome], grace: float = 0.0) -> Outcome:
    """Wait for the outcome, as any rank but the first; give up if it is late.

    Args:
        point: The meeting.
        explain_absence: Called when the time is over; what it returns is left for the others too.
        grace: Seconds beyond the point's time limit, where the first rank has that limit itself.
    """
    place = point.circle.place
    deadline = time.monotonic() + point.time_limit + grace
    found = wait(place, (point.outcome, point.given_up), deadline)
    if found is not None:
        return msgspec.msgpack.decode(found[1], type=Outcome)
    outcome = explain_absence()
    place.post(point.given_up, msgspec.msgpack.encode(outcome))
    return outcome


def check_given_up(point: Point) -> None:
    """As the first rank, learn that others did not wait long enough.

    Raises:
        MeetingFailed: What they raised.
    """
    word = point.circle.place.look(point.given_up)
    if word is not None:
        msgspec.msgpack.decode(word, type=Outcome).unwrap()


def _lead(point: Point, payload: bytes) -> dict[int, bytes]:
    outcome = _collect(point, payload)
    tell(point, outcome)
    return outcome.unwrap()


def _collect(point: Point, payload: bytes) -> Outcome:
    """Wait for each rank in turn: one look at a time, however many ranks there are."""
    payloads = {0: payload}
    if not point.circle.peers_exist:
        return Outcome(payloads=payloads)
    place, deadline = point.circle.place, time.monotonic() + point.time_limit
    place.post(point.arrival(0), payload)
    for index in range(1, point.circle.size or 1):
        found = wait(place, (point.given_up, point.arrival(index)), deadline)
        if found is None:
            return _absence(point)
        key, value = found
        if key == point.given_up:
            return msgspec.msgpack.decode(value, type=Outcome)
        payloads[index] = value
    return Outcome(payloads=payloads)


def _absence(point: Point) -> Outcome:
    """Name the ranks that did not come. One that came and did not go on is the first itself."""
    circle = point.circle
    everyone = range(circle.size or 1)
    absent = [index for index in everyone if circle.place.look(point.arrival(index)) is None]
    who = f"{circle.noun}{'s' if len(absent) > 1 else ''} {format_ranks(absent or [0])}"
    of = f" of {circle.size}" if circle.size else ""
    return Outcome(
        failure=f"{who}{of} did not come to {point.name!r} within {point.time_limit:g} s "
        f"({circle.noun} {circle.index} waited at {circle.place.where})",
        remedy="see where they are (py-spy dump --pid PID, or the verdict of hangcheck); if they "
        "are only slow, allow more time: time_limit=... or HANGCHECK_MEETING_TIMEOUT=...",
    )
