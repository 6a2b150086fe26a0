"""What a rank said as an exception ended it, and where that exception came from."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.text.moments import NANOSECONDS

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

WAY_OUT_NS = NANOSECONDS
"""Signs of progress that a program still gives while its exception leaves the last sections."""
_AT_ITS_END = re.compile(r" in (\S+ \([^()]+:\d{1,9}\))\Z")
"""The place that the recorder writes behind the message (`recorder.announcer.last_words`)."""


def last_words(view: RankView) -> str:
    """Return a rank's exception in one line, empty if it said nothing."""
    heard = view.process_exit.last_words if view.process_exit is not None else ""
    return heard or (view.beat.last_words if view.beat is not None else "")


def raised(view: RankView) -> bool:
    """Whether an exception left the program: none that was caught, after which it went on."""
    beat = view.beat
    if beat is None or beat.ending != "raised" or not beat.ended_ns:
        return False
    return beat.last_beat_ns - beat.ended_ns < WAY_OUT_NS


def raised_at(view: RankView) -> Frame | None:
    """Return where the exception came from that ended a rank.

    Returns:
        The innermost frame of the user's own code, its file as the rank itself wrote it; None of
        one that still runs, or that no exception ended, and where its words do not tell.
    """
    if view.process_exit is None or not raised(view):
        return None
    told = _AT_ITS_END.search(last_words(view))
    return Frame.parse(told[1]) if told is not None else None
