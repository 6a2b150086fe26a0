"""When `hangcheck run` is told of a hang, which may end the job for it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from lightning_hangcheck.watch.messages import HangProven

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

LIMIT_S = 5.0
"""Waited for storage, and for other nodes, that do not answer."""


class HangTelling:
    """One hang at a time: told once, its evidence saved and read by the job's other nodes.

    Where the job is ended for it, the store by which they hear of it goes as well; and one that
    moves again by then is not ended.

    Args:
        ends_the_job: The job is ended, or started again, for it.

    Attributes:
        word: What is to be told.
        verdict: That by which it is proven.
        saved_as: Number of that in the run folder; None before.
    """

    def __init__(self, *, ends_the_job: bool) -> None:
        self._ends_the_job = ends_the_job
        self._by_s: float | None = None
        self._saved = threading.Event()
        self.word = HangProven()
        self.verdict: Verdict | None = None
        self.saved_as: int | None = None

    def prove(self, word: HangProven, verdict: Verdict | None, now_s: float) -> threading.Event:
        """Have it told once that is due.

        Args:
            word: What to tell.
            verdict: By which it is proven.
            now_s: Monotonic.

        Returns:
            To be set once its evidence is saved.
        """
        self.word, self.verdict, self.saved_as = word, verdict, None
        self._by_s = now_s + LIMIT_S
        self._saved = threading.Event()
        return self._saved

    @property
    def waits(self) -> bool:
        """Whether there is one to be told."""
        return self._by_s is not None

    def is_due(self, now_s: float, *, stands: bool, known: bool) -> bool:
        """Whether it is to be told now; one that the job is not to be ended for is forgotten.

        Args:
            now_s: Monotonic.
            stands: The job has not moved since.
            known: All other nodes that can be told of it have read of it.
        """
        if self._by_s is None:
            return False
        if self._ends_the_job and not stands:
            self._by_s = None
            return False
        ready = self._saved.is_set() and (known or not self._ends_the_job)
        return ready or now_s >= self._by_s

    def told(self) -> None:
        """Take down that it was told."""
        self._by_s = None
