"""Keeps run.json of a watched run: written when a rank appears and when the run ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.files.atomic import write_atomically
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import read_owned
from lightning_hangcheck.machine.which_machine import which_machine
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.model.run import RankPlace, RankRecord, Round, RunRecord
from lightning_hangcheck.observe.run_record import rank_record, versions
from lightning_hangcheck.text.moments import utc_now

if TYPE_CHECKING:
    from lightning_hangcheck.model.run import NodeClock
    from lightning_hangcheck.session.session import Session
    from lightning_hangcheck.watch.ranks.roster import Roster

READ_LIMIT_S = 2.0
"""One small file; storage that is slower than this has its rounds told from here on."""


class RunRecorder:
    """Composes run.json from the roster, and says when it changed.

    Args:
        session: Of the job.

    Attributes:
        meeting: As in `RunRecord`.
        node: As in `RunRecord`.
        clocks: As in `RunRecord`.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.meeting = ""
        self.node: int | None = None
        self.clocks: tuple[NodeClock, ...] = ()
        self._records: dict[int, RankRecord] = {}
        self._round = 0
        self._versions = versions()
        self._written: RunRecord | None = None

    def update(self, roster: Roster, earlier: tuple[Round, ...]) -> RunRecord | None:
        """Return the record if a rank appeared or changed its process since, else None.

        Args:
            roster: Of the present round.
            earlier: The rounds before it.
        """
        self._follow(roster)
        present = Round(
            number=roster.round.number,
            started_at=roster.round.started_at,
            world_size=roster.round.world_size,
            ranks=tuple(
                RankPlace(rank=rank, host=record.host, pid=record.pid)
                for rank, record in sorted(self._records.items())
            ),
        )
        record = self._record(roster, (*earlier, present) if roster.ranks else earlier)
        if record == self._written:
            return None
        self._written = record
        return record

    def end(
        self, roster: Roster, rounds: tuple[Round, ...], exit_code: int | None, ended_by: str
    ) -> RunRecord:
        """Return the record of the run that has ended, with all its rounds."""
        self._follow(roster)
        record = self._record(roster, rounds)
        return replace(record, ended_at=utc_now(), exit_code=exit_code, ended_by=ended_by)

    def write(self, record: RunRecord) -> None:
        """Write run.json.

        Raises:
            OSError: The run folder is gone or full.
        """
        write_atomically(self._session.run_folder.run_file, encode_pretty(record))

    def _follow(self, roster: Roster) -> None:
        if roster.round.number != self._round:
            self._round, self._records = roster.round.number, {}
        for rank in self._records.keys() - roster.ranks.keys():
            del self._records[rank]  # it was none, such as a launcher that was alone so far
        for rank, watched in roster.ranks.items():
            known = self._records.get(rank)
            if known is None or known.pid != watched.found.pid:
                self._records[rank] = rank_record(watched.found, roster.host)

    def _record(self, roster: Roster, rounds: tuple[Round, ...]) -> RunRecord:
        facts = self._session.facts
        return RunRecord(
            run_id=self._session.run_folder.run_id,
            command=facts.command,
            started_at=facts.started_at,
            job=facts.job,
            world_size=max(len(self._records), roster.round.world_size),
            nodes=(roster.host,),
            versions=self._versions,
            ranks=tuple(record for _, record in sorted(self._records.items())),
            rounds=rounds,
            meeting=self.meeting,
            machine=which_machine(),
            node=self.node,
            clocks=self.clocks,
        )


def rounds_so_far(session: Session) -> tuple[Round, ...]:
    """Return the rounds of this run that a sidecar before us saw to their end."""
    file = session.run_folder.run_file
    try:
        data = apart(READ_LIMIT_S, partial(read_owned, file))
        record = decode(data, RunRecord, str(file))
    except (OSError, NoAnswerFromStorage, UnreadableRun):
        return ()
    ours = record.started_at == session.facts.started_at
    return tuple(one for one in record.rounds if one.ended_at is not None) if ours else ()
