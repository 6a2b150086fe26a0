"""The nodes of a job around this one: who judges, what is heard of whom, wherever they meet.

They meet in one place; where that is a store, and a folder is known that all of them may see, they
go on there as well once the store is lost to any of them. Each may have a folder of its own by that
name: so it counts as a place where nodes meet only once another one was seen there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.gather.rank_set import members
from lightning_hangcheck.nodes.bounds import MOST_LOST
from lightning_hangcheck.nodes.encoding import JudgesWord
from lightning_hangcheck.nodes.exchange import Exchange
from lightning_hangcheck.nodes.heard import as_lost, newest, who_judged
from lightning_hangcheck.nodes.judging.moving import Moving
from lightning_hangcheck.nodes.judging.succession import (
    LONGEST_LINE,
    SILENT_AFTER_S,
    Role,
    Succession,
)
from lightning_hangcheck.nodes.words import Telling
from lightning_hangcheck.text.moments import NANOSECONDS
from lightning_hangcheck.text.rank_ranges import format_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from lightning_hangcheck.model.run import NodeClock, NodePlace
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.nodes.digest import NodeDigest
    from lightning_hangcheck.nodes.heard import Heard
    from lightning_hangcheck.nodes.places.meeting_place import ClosablePlace
    from lightning_hangcheck.nodes.round_end import RoundEnd
    from lightning_hangcheck.nodes.words import HeardWord


class Circle:
    """One node among the others.

    Args:
        place: Which node this is, of how many.
        meetings: Where they meet, and the folder in which they go on, if there is one.
        now_ns: Tells the present time, monotonic.

    Attributes:
        role: What this node does, as of when it told last.
    """

    role: Role

    def __init__(
        self,
        place: NodePlace,
        meetings: Sequence[ClosablePlace],
        now_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._now_ns = now_ns
        self._own = place.number
        self._meetings = meetings
        self._ways = [
            Exchange(place, one, listens=bool(n), now_ns=now_ns) for n, one in enumerate(meetings)
        ]
        self._succession = Succession(place.number, _seconds(now_ns()))
        self._moving = Moving()
        self._known: dict[int, Heard] = {}
        self._known_by: HeardWord | None = None
        self._hurried = False
        self._take_role()

    def start(self) -> None:
        """Hear and tell in threads of its own from now on."""
        for way in self._ways:
            way.start()

    def take_turn(self) -> None:
        """Hear and tell once, at each place; `start` has it done each second."""
        for way in self._ways:
            way.take_turn()

    def _take_role(self) -> None:
        """Only now and then: whoever judges must not find in between that another one does."""
        now_ns = self._now_ns()
        for judge, (word, heard_ns) in self._words.items():
            self._succession.hear(judge, word.line, _seconds(heard_ns))
        role = self._succession.role(_seconds(now_ns), reaches=self._reaches)
        self.role = role
        told = self._words.get(role.judge) if role.judge is not None else None
        if told is not None and told is not self._known_by:
            known, self._known_by = who_judged(*told), told
            self._known = {node: one for node, one in known.items() if node != self._own}

    @property
    def heard(self) -> dict[int, Heard]:
        """The nodes below this one of which something was heard; all nodes where it judges."""
        return newest(way.heard for way in self._ways)

    @property
    def unused(self) -> dict[int, str]:
        """The nodes of which nothing else is heard than what cannot be read, and why that is so."""
        told = {node: why for way in self._ways for node, why in way.unused.items()}
        return {node: why for node, why in told.items() if node not in self.heard}

    @property
    def same_number(self) -> tuple[str, ...] | None:
        """Addresses of another node that has this one's number; None while there is none."""
        return next((way.same_number for way in self._ways if way.same_number is not None), None)

    @property
    def known(self) -> dict[int, Heard]:
        """Whom this node followed last, and the nodes that this one no longer heard."""
        return dict(self._known)

    @property
    def verdict(self) -> Verdict | None:
        """What the node told last that this one follows."""
        word = self._followed()
        return word.verdict if word is not None else None

    def told_since(self, verdict: Verdict) -> int | None:
        """Return since which stamp this node's words, wherever it is heard, have such a verdict.

        Args:
            verdict: One of this kind.

        Returns:
            None where its last word, at any place that can be used, has none.
        """
        told = [way.posted for way in self._active if way.usable]
        if not all(one is not None and one.kind == verdict.verdict for one in told):
            return None
        return max((one.since for one in told if one is not None), default=None)

    def all_know(self, verdict: Verdict) -> bool:
        """Whether who judges has told that all nodes have read a verdict of this kind.

        Args:
            verdict: One of this kind.
        """
        words = [self._followed()]
        if self.role.judges:
            words = [way.posted.word for way in self._active if way.posted is not None]
        kinds = (one.verdict for one in words if one is not None and one.known)
        return any(one is not None and one.verdict == verdict.verdict for one in kinds)

    @property
    def asked(self) -> tuple[str, ...]:
        """Addresses of which that one wants to know what connections to them show."""
        word = self._followed()
        return word.asks if word is not None else ()

    @property
    def end(self) -> RoundEnd | None:
        """How the round before ended, as that one says."""
        word = self._followed()
        return word.end if word is not None else None

    @property
    def clocks(self) -> dict[int, NodeClock]:
        """Clocks of the nodes that were heard; the first node's only."""
        return {node: one for way in self._ways for node, one in way.clocks.items()}

    @property
    def where(self) -> str:
        """The place where they meet, in words."""
        return self._shared[-1].where

    @property
    def moved(self) -> bool:
        """Whether others were seen in the folder, as the store is lost to some."""
        return len(self._shared) > 1

    @property
    def in_trouble(self) -> bool:
        """Whether no place can be used; one may be usable in which nobody else is."""
        return not any(way.usable for way in self._active)

    @property
    def trouble(self) -> str:
        """Why the nodes do not hear each other, where that lasts; empty where they do."""
        now_ns = self._now_ns()
        told = [way.trouble(now_ns) for way in self._shared]
        if not all(told):
            return ""
        alone_in = [way.where for way in self._active if way not in self._shared]
        return "; ".join([*(f"no other node was seen in {one}" for one in alone_in), told[0]])

    def tell(
        self,
        digest: NodeDigest,
        verdict: Verdict | None,
        asks: tuple[str, ...] = (),
        silent: Sequence[Heard] = (),
        end: RoundEnd | None = None,
        *,
        known: bool = False,
    ) -> None:
        """Have this told next.

        Args:
            digest: Of this node alone.
            verdict: The newest; told, as is what follows, where this node judges.
            asks: Addresses of nodes that are no longer heard.
            silent: These nodes.
            end: How the round before ended.
            known: All nodes have read a verdict of this kind.
        """
        self.look_round()
        role, word = self.role, None
        if role.judges or role.claims:
            word = self._word(digest, verdict if role.judges else None, asks, silent)
            word = replace(word, end=end, known=known) if role.judges else word
        for way in self._active:
            way.tell(Telling(digest, word))

    def look_round(self) -> None:
        """Learn what this node does by now, and use the folder as well once that is due."""
        self._take_role()
        if len(self._ways) == 1 or self._moving.moved:
            return
        store, folder = self._ways
        if self._moving.look(
            _seconds(self._now_ns()),
            trouble=store.in_trouble,
            answered=store.answered,
            others=folder.somebody_came,
            ends=self._hurried,
        ):
            folder.begin(store.telling)

    def hurry(self, *, ends: bool = True) -> None:
        """Hear and tell more often from now on, the end is near; or as ever: it was a round's."""
        if ends or self._hurried:
            self._hurried = ends
            for way in self._ways:
                way.hurry(ends=ends)

    def close(self) -> None:
        """Tell what was asked for last, and end what talks with the places."""
        for way in self._ways:
            way.close()
        for meeting in self._meetings:
            meeting.close()

    @property
    def _active(self) -> list[Exchange]:
        return self._ways if self._moving.moved else self._ways[:1]

    @property
    def _shared(self) -> list[Exchange]:
        """The places by which nodes can hear each other, as far as it is known."""
        folder = self._ways[-1]
        came = folder.somebody_came or folder.heard or folder.words
        return self._ways if self._moving.moved and came else self._ways[:1]

    @property
    def _reaches(self) -> bool:
        return any(way.usable for way in self._shared)

    @property
    def _words(self) -> dict[int, HeardWord]:
        found: dict[int, HeardWord] = {}
        for way in self._ways:
            for judge, told in way.words.items():
                if judge not in found or found[judge].heard_ns < told.heard_ns:
                    found[judge] = told
        return found

    def _followed(self) -> JudgesWord | None:
        judge = self.role.judge
        return self._words[judge].word if judge is not None else None

    def _word(
        self,
        digest: NodeDigest,
        verdict: Verdict | None,
        asks: tuple[str, ...],
        silent: Sequence[Heard],
    ) -> JudgesWord:
        (state,) = digest.nodes
        now_ns = self._now_ns()
        limit_ns = now_ns - int(SILENT_AFTER_S * NANOSECONDS)
        there = sorted(node for node, one in self.heard.items() if one.heard_ns > limit_ns)
        return JudgesWord(
            stamp=now_ns,
            verdict=verdict,
            asks=asks,
            state=replace(state, ranks=(), folded=(), gaps=(), code=(), left=None),
            ranks=format_ranks([*(one.view.rank for one in state.ranks), *members(state.folded)]),
            line=tuple(there[:LONGEST_LINE]),
            lost=tuple(as_lost(one, now_ns) for one in silent[:MOST_LOST]),
        )


def _seconds(moment_ns: int) -> float:
    return moment_ns / NANOSECONDS
