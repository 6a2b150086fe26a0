"""Ranks that ended, with what they had said of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck.model.beat import Beat

if TYPE_CHECKING:
    from lightning_hangcheck.model.case import RankView

LOST_STORE = "DistNetworkError: Connection reset by peer"
LOST_PEER = "RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:537] Connection closed"


def beaten(view: RankView, beat: Beat) -> RankView:
    return msgspec.structs.replace(view, beat=beat)


def raising(view: RankView, at_ns: int, *, last_beat_ns: int = 0) -> RankView:
    beat = Beat(pid=1, ending="raised", ended_ns=at_ns, last_beat_ns=last_beat_ns)
    return beaten(view, beat)


def member(view: RankView, ending: str = "running", at_ns: int = 0) -> RankView:
    return beaten(view, Beat(pid=1, membership="member", ending=ending, ended_ns=at_ns))
