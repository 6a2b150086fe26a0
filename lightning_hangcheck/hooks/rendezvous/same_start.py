"""Ranks of one start of the job find each other at a place that outlives it.

torchrun tells its ranks nothing that names their round on all nodes alike: each agent counts only
the restarts that ranks of its own asked for (TORCHELASTIC_RESTART_COUNT; torch's api.py: membership
changes do not count), and its store may serve several rounds. So the first rank names the start, by
a word that nobody had before, and each other one believes it only once it was answered:

    leader             what the first rank calls this start; of an earlier one until it has come
    hello-<n>          rank n's own word, another one in each process
    <start>/known-<n>  the first rank's answer: that word. Only a rank that lives now can know it
    <start>/agreed-<n> rank n needs no more answers
    <start>/...        all that the guards leave, which no other start ever reads
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.wait_limit import notice_after

if TYPE_CHECKING:
    from lightning_hangcheck.nodes.meeting_place import DecidingPlace

LEADER = "leader"
LETTERS = 8
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.2  # seconds between two rounds of answers
END_LIMIT_S = 1.0
LATE_RANKS = "rank 0 is done, and waits for ranks that have not come to their first guard"

_starts: dict[str, Start] = {}
"""By the place: one agreement holds as long as this process lives."""


class Start:
    """What this process knows of the start that it belongs to.

    Args:
        place: Where all starts of the job meet.
        index: Of this rank; 0 names the start.
        size: How many ranks there are.

    Attributes:
        name: Of the start; empty until the first rank has answered.
    """

    def __init__(self, place: DecidingPlace, index: int, size: int) -> None:
        self._index, self._own = index, os.urandom(LETTERS).hex()
        self.name = self._own if index == 0 else ""
        self._said_hello = False
        self._expected_until = 0.0
        self._closing = threading.Event()
        if index == 0:
            place.post(LEADER, self._own.encode())
            self._answering = threading.Thread(
                target=self._answer, args=(place, size), name="hangcheck-start", daemon=True
            )
            self._answering.start()
            atexit.register(self.leave)

    def agree(self, place: DecidingPlace) -> bool:
        """Ask once whether the first rank has come and knows us; True from then on."""
        if self.name:
            return True
        if not self._said_hello:
            place.post(f"hello-{self._index}", self._own.encode())
            self._said_hello = True
        leader = (place.look(LEADER) or b"").decode(errors="replace")
        known = place.look(f"{leader}/known-{self._index}") if leader.isalnum() else None
        if known == self._own.encode():
            place.post(f"{leader}/agreed-{self._index}", b"1")
            self.name = leader
        return bool(self.name)

    def expect(self, limit_s: float) -> None:
        """Take down that the others are waited for, by whatever guard, for so long from now on."""
        self._expected_until = max(self._expected_until, time.monotonic() + limit_s)

    def leave(self) -> None:
        """At the first rank's end, wait for those that nobody else could answer.

        No longer than a guard does, and not where the rank fails: its launcher will end them all.
        """
        limit_s = max(0.0, self._expected_until - time.monotonic())
        if getattr(sys, "last_value", None) is None and limit_s:
            silent_s = notice_after(limit_s)
            self._answering.join(silent_s)
            if self._answering.is_alive():
                left_s = limit_s - silent_s
                log.once("late-ranks", f"{LATE_RANKS}, for {left_s:.0f} s at most")
                self._answering.join(left_s)
        self.close()

    def close(self) -> None:
        """Answer nobody any more: no thread of ours may be in torch when the interpreter ends."""
        self._closing.set()
        self._answering.join(END_LIMIT_S)

    def _answer(self, place: DecidingPlace, size: int) -> None:
        """Give each rank its word back, also one of an earlier start: nobody listens there."""
        told: dict[int, bytes] = {}
        left, pause = set(range(1, size)), FIRST_PAUSE
        try:
            while left and not self._closing.wait(pause):
                began = time.monotonic()
                for index in sorted(left):
                    hello = place.look(f"hello-{index}")
                    if hello is not None and hello != told.get(index):
                        place.post(f"{self.name}/known-{index}", hello)
                        told[index] = hello
                left -= {n for n in told if place.look(f"{self.name}/agreed-{n}") is not None}
                pause = min(2 * pause, LONGEST_PAUSE) + time.monotonic() - began
        except MeetingFailed as error:
            log.once("same-start", f"ranks that come later to a guard wait in vain: {error}")


class PlaceOfStart:
    """A place as the ranks of one start see it: nothing of earlier starts is there.

    What another rank than the first leaves before it was answered is passed on then.

    Args:
        place: Where all starts meet.
        start: This one.
    """

    def __init__(self, place: DecidingPlace, start: Start) -> None:
        self._place, self.start = place, start
        self._kept: dict[str, bytes] = {}

    @property
    def where(self) -> str:
        """The place in words."""
        return self._place.where

    @property
    def agreed(self) -> bool:
        """Whether the first rank has come, and answered."""
        return bool(self.start.name)

    def post(self, key: str, value: bytes) -> None:
        """Leave a value, for the ranks of this start."""
        self._kept[key] = value
        self._pass_on()

    def decide(self, key: str, value: bytes) -> bytes:
        """Hold to the first word of this start; to one's own where the first rank has not come."""
        if self._pass_on():
            return self._place.decide(f"{self.start.name}/{key}", value)
        return self._kept.setdefault(key, value)

    def look(self, key: str) -> bytes | None:
        """Return what ranks of this start left."""
        if not self._pass_on():
            return self._kept.get(key)
        return self._place.look(f"{self.start.name}/{key}")

    def _pass_on(self) -> bool:
        """Leave what was kept, once this rank is known; at a meeting each key has one word."""
        if not self.start.agree(self._place):
            return False
        while self._kept:
            key, value = self._kept.popitem()
            self._place.decide(f"{self.start.name}/{key}", value)
        return True


def of_this_start(place: DecidingPlace, index: int, size: int) -> PlaceOfStart:
    """Return the place as the ranks of this process's start of the job see it.

    Args:
        place: Where all starts meet; another object with the same words is the same place.
        index: Of this rank.
        size: How many there are.
    """
    start = _starts.get(place.where)
    if start is None:
        start = _starts[place.where] = Start(place, index, size)
    return PlaceOfStart(place, start)
