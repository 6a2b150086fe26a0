"""What run.json says of the ranks, while they come and go."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

from recorded_run import recorded_run

from lightning_hangcheck.observe.discovery import FoundRank
from lightning_hangcheck.watch.ranks.roster import Roster
from lightning_hangcheck.watch.ranks.rounds import WatchedRound
from lightning_hangcheck.watch.ranks.run_recorder import RunRecorder

if TYPE_CHECKING:
    from pathlib import Path


def test_a_launcher_that_was_taken_for_a_rank_until_one_came_is_none(tmp_path: Path) -> None:
    """torchrun waits in its rendezvous; the rank that it starts then is not number 0."""
    with recorded_run(tmp_path / "run") as session, closing(Roster(session, 0)) as roster:
        recorder = RunRecorder(session)
        roster.round.take_in(FoundRank(rank=0, pid=os.getpid(), guessed=True), 0)
        record = recorder.update(roster, ())
        assert record is not None
        assert [one.rank for one in record.ranks] == [0]
        roster.round = WatchedRound(0)
        roster.round.take_in(FoundRank(rank=1, pid=os.getpid(), world_size=2), 0)
        record = recorder.update(roster, ())
        assert record is not None
        assert [one.rank for one in record.ranks] == [1]
        (present,) = record.rounds
        places = [(one.rank, one.host, one.pid) for one in present.ranks]
        assert places == [(1, socket.gethostname(), os.getpid())]
