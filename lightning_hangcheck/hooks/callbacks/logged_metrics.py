"""What `HangCheck(log_metrics=True)` sends through the Trainer's own loggers: pace and state.

Rank 0 reads the pages of its node's ranks in shared memory. It asks no rank for anything, so one
that is stuck delays nobody; and a rank 0 that is stuck itself sends nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.decoding import decode
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.observe.pages import Pages
from lightning_hangcheck.observe.watch_notes import WatchNotes
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.report.stragglers import median_step, ratio_to

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from lightning_hangcheck.model.beat import Beat
    from lightning_hangcheck.model.step_times import StepTimes
    from lightning_hangcheck.session.session import Session

STATES = {"suspect": 1, "hang": 2, "dead": 3}
"""Of the newest verdict that stands, as a number; anything else is 0."""


class LoggedMetrics:
    """Logs the pace of this node's ranks since the last time.

    Args:
        session: Of the job; its pages are in shared memory.
    """

    def __init__(self, session: Session) -> None:
        self._watch_file = session.watch_file
        self._pages = Pages(session.pages)
        self._before: dict[int, StepTimes] = {}
        self._step = 0
        self._failed = False

    def log_if_due(self, trainer: Trainer) -> None:
        """Log at the Trainer's own interval; loggers that fail are said once and left alone."""
        step = trainer.global_step
        if self._failed or step == self._step or step % max(1, trainer.log_every_n_steps):
            return
        self._step = step
        try:
            metrics = self._metrics()
            for logger in trainer.loggers if metrics else ():
                logger.log_metrics(metrics, step)
        except Exception as error:  # noqa: BLE001 - a guest's logger may raise anything
            self._failed = True
            what = describe_exception(error)
            log.once("metrics", f"log_metrics of HangCheck stops, training goes on: {what}")

    def _metrics(self) -> dict[str, float]:
        """Compare what the ranks timed since the last time; nothing where they timed nothing."""
        sums = self._read_sums()
        before, self._before = self._before, sums
        since = {rank: told.since(before[rank]) for rank, told in sums.items() if rank in before}
        means = {rank: made.a_step() for rank, made in since.items() if made.steps > 0}
        if not means:
            return {}
        slowest = max(means, key=lambda rank: means[rank].own_s)
        typical = median_step(tuple(means.values()))
        return {
            "hangcheck/state": self._state(),
            "hangcheck/step_time": typical.seconds,
            "hangcheck/slowest_rank": slowest,
            "hangcheck/straggler_ratio": ratio_to(typical, means[slowest]),
        }

    def _read_sums(self) -> dict[int, StepTimes]:
        """Of two processes that were one rank after each other the newer page counts."""
        self._pages.find_new()
        newest: dict[int, Beat] = {}
        for beat in self._pages.read()[0].values():
            if beat.rank is None or beat.step_times is None:
                continue
            known = newest.get(beat.rank)
            if known is None or known.last_beat_ns < beat.last_beat_ns:
                newest[beat.rank] = beat
        return {rank: beat.step_times for rank, beat in newest.items() if beat.step_times}

    def _state(self) -> int:
        """What the sidecar told last; no sidecar has told anything yet where its notes lack."""
        try:
            data = read_owned(self._watch_file, EVIDENCE_BYTES)
            notes = decode(data, WatchNotes, str(self._watch_file))
        except (OSError, UnreadableRun):
            return 0
        return STATES.get(notes.newest.verdict, 0) if notes.newest is not None else 0
