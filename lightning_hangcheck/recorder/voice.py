"""All that a recording process says, and through what: page, journal and console."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lightning_hangcheck.model.beat import OpenSection
from lightning_hangcheck.recorder.facts import versions
from lightning_hangcheck.recorder.phase_words import phase_after_checkpoint, phase_of_section
from lightning_hangcheck.recorder.sections import Visit
from lightning_hangcheck.recorder.wording import clean_name, describe_exception, last_words

if TYPE_CHECKING:
    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.recorder.console import Console
    from lightning_hangcheck.recorder.journal_writer import JournalWriter
    from lightning_hangcheck.recorder.page_writer import PageWriter


class Voice:
    """Speaks for one process; any thread may call it.

    Args:
        page: What the sidecar reads.
        console: What people read while it runs.
        journal: What is read afterwards; None where there is no run folder.
    """

    def __init__(self, page: PageWriter, console: Console, journal: JournalWriter | None) -> None:
        self.page = page
        self._console = console
        self._journal = journal
        self._visits: list[Visit] = []
        self._last_number = 0
        # re-entrant: a signal handler may call us in the thread that is in here already
        self._lock = threading.RLock()

    def identify(self, identity: Identity) -> None:
        """Say which rank this is, as soon as it is known."""
        rank, world_size, local_rank = identity.rank, identity.world_size, identity.local_rank
        self._console.identify(identity)
        self.page.identify(rank, world_size, local_rank)
        if self._journal and rank is not None:
            self._journal.settle(rank)
        self.note(
            "identity",
            {
                "rank": rank,
                "world_size": world_size,
                "local_rank": local_rank,
                "versions": versions(),
            },
        )

    def checkpoint(self, name: str, number: int | None) -> None:
        """Say that a checkpoint was passed; its number is one more than the last unless given."""
        name = clean_name(str(name))
        with self._lock:
            number = number if isinstance(number, int) else self._last_number + 1
            self._last_number = number
            self.page.mark_checkpoint(number, name, time.time_ns())
            phase = phase_after_checkpoint(name, self.page.phase)
            if phase != self.page.phase:
                self.page.show_phase(phase)
        self._console.say(f"CHECKPOINT {number}: {name}")
        self.note("checkpoint", {"number": number, "name": name})

    def open_section(self, name: str) -> Visit:
        """Say that a critical section begins."""
        name = clean_name(str(name))
        visit = Visit(OpenSection(name, time.monotonic_ns()), phase_of_section(name))
        with self._lock:
            visit.phase_before = self.page.phase
            self._visits.append(visit)
            self._show_sections()
            if visit.phase:
                self.page.show_phase(visit.phase)
        self._console.say(f"About to call {name}...")
        self.note("section_begin", {"name": name})
        return visit

    def close_section(self, visit: Visit, error: BaseException | None) -> None:
        """Say how a critical section ended."""
        name, seconds = visit.shown.name, visit.seconds
        with self._lock:
            if visit not in self._visits:  # entered before a fork, by the process that we came from
                return
            self._visits.remove(visit)
            self._show_sections()
            if visit.phase and self.page.phase == visit.phase:
                self.page.show_phase(visit.phase_before)
        if error is None:
            self._console.say(f"{name} returned ({seconds:.3f}s)")
            self.note("section_end", {"name": name, "seconds": seconds})
            return
        self._console.in_trouble = True
        reason = describe_exception(error)
        self._console.say(f"{name} raised {reason} ({seconds:.3f}s)")
        self.note("section_raised", {"name": name, "seconds": seconds, "error": reason})

    def raised(self, error: BaseException) -> None:
        """Leave last words: this exception ends the program or a stage of it."""
        words = last_words(error)
        self._console.in_trouble = True
        self.page.end("raised", words)
        self.note("raised", {"last_words": words})

    def finished(self) -> None:
        """Say that the program ends without an exception."""
        self.page.end("finished")
        self.note("finished", {})

    def note(self, kind: str, fields: dict[str, object]) -> None:
        """Write a line of the journal."""
        if self._journal:
            self._journal.add(kind, fields)

    def close(self, limit_s: float) -> None:
        """Write what waits, for at most so many seconds."""
        if self._journal:
            self._journal.close(limit_s)

    def _show_sections(self) -> None:
        self.page.show_sections([visit.shown for visit in self._visits])
