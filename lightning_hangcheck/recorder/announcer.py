"""All that a recording process says, and through what: page, journal and console.

Names and exceptions as one clean line: no newlines, no secrets, bounded.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING

from msgspec.structs import replace

from lightning_hangcheck.model.beat import OpenSection
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.phase_words import phase_after_checkpoint, phase_of_name
from lightning_hangcheck.recorder.process_facts import versions
from lightning_hangcheck.recorder.sections import OpenedSection
from lightning_hangcheck.text import plain_text
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from types import TracebackType

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.recorder.console import Console
    from lightning_hangcheck.recorder.journal_writer import JournalWriter
    from lightning_hangcheck.recorder.page.writer import PageWriter


LONGEST_NAME = 200
LONGEST_LAST_WORDS = 300
# redaction looks at this much of a message: enough for what is shown, whatever its length
_LOOKED_AT = 4000
_LONGEST_SHAPE = 64  # so many characters are enough to know any secret by its shape
_UNFINISHED_WORD = re.compile(r"\S+\Z")


@lru_cache(maxsize=256)
def clean_name(name: str) -> str:
    """A checkpoint's or section's name as it may be shown, at most 200 characters."""
    return one_line(name, LONGEST_NAME)


def one_line(text: str, longest: int) -> str:
    """Redact a text, join its lines and cut it, with an ellipsis where something is missing."""
    line = plain_text.one_line(redact_text(_beginning(text)))
    return line if len(line) <= longest else line[: longest - 3] + "..."


def _beginning(text: str) -> str:
    """As much as is looked at, without the word that it ends in: half a secret has no shape."""
    if len(text) <= _LOOKED_AT:
        return text
    whole = _LOOKED_AT - _LONGEST_SHAPE
    return f"{text[:whole]}{_UNFINISHED_WORD.sub('', text[whole:_LOOKED_AT])}..."


def describe_exception(error: BaseException, longest: int = LONGEST_LAST_WORDS) -> str:
    """Type and message in one redacted line, for example ``ValueError: no such split``."""
    kind = one_line(type(error).__name__, longest // 2)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything; the type is still told
        message = "(its message cannot be shown)"
    shown = one_line(message, longest - len(kind) - 2)
    return f"{kind}: {shown}" if shown else kind


def last_words(error: BaseException) -> str:
    """The exception and the innermost frame of the user's own code, at most 300 characters.

    Returns:
        For example ``ValueError: no such split in load_vocab (data.py:41)``; a long message gives
        way to the place.
    """
    frame = user_frame(error.__traceback__)
    place = "" if frame is None else " " + one_line(f"in {frame}", LONGEST_LAST_WORDS // 2)
    return describe_exception(error, LONGEST_LAST_WORDS - len(place)) + place


def user_frame(traceback: TracebackType | None) -> Frame | None:
    """The innermost frame of the user's own code; the innermost of all if there is none."""
    innermost = users = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        innermost = (code, traceback.tb_lineno)
        users = innermost if is_users(code.co_filename) else users
        traceback = traceback.tb_next
    found = users or innermost
    if found is None:
        return None
    code, line = found
    return Frame(code.co_name, _shorten(code.co_filename), line)


def _shorten(file: str) -> str:
    """Relative to the script's folder where it lies below it."""
    folder = sys.path[0] if sys.path else ""
    return file.removeprefix(f"{folder}{os.sep}") if folder else file


LONGEST_SAID = 1000  # characters of a line that a hook says


class Announcer:
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
        self._visits: list[OpenedSection] = []
        self._last_number = 0
        self._script_counts = False
        # re-entrant: a signal handler may call us in the thread that is in here already
        self._lock = threading.RLock()

    def identify(self, identity: Identity) -> None:
        """Say which rank this is, as soon as it is known."""
        rank, world_size, local_rank = identity.rank, identity.world_size, identity.local_rank
        self._console.identify(identity)
        self.page.identify(rank, world_size, local_rank, identity.round)
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

    def checkpoint(self, name: str, number: int | None, *, ours: bool = False) -> None:
        """Say that a checkpoint was passed; its number is one more than the last unless given.

        Args:
            name: Of the checkpoint.
            number: Of the checkpoint.
            ours: Found without the script's help: none is said once the script says its own.
        """
        name = clean_name(str(name))
        with self._lock:
            if ours and self._script_counts:
                return
            self._script_counts = not ours
            number = number if isinstance(number, int) else self._last_number + 1
            self._last_number = number
            self.page.mark_checkpoint(number, name, time.time_ns())
            phase = phase_after_checkpoint(name, self.page.phase)
            if phase != self.page.phase:
                self.page.show_phase(phase)
        self._console.say(f"CHECKPOINT {number}: {name}")
        self.note("checkpoint", {"number": number, "name": name})

    def is_in(self, name: str) -> bool:
        """Whether a section of this name is open, in any thread."""
        with self._lock:
            return any(visit.shown.name == name for visit in self._visits)

    def open_section(
        self, name: str, *, spoken: bool = True, goes_on_after_s: float | None = None
    ) -> OpenedSection:
        """Say that a critical section begins; on the page only unless it is spoken."""
        name = clean_name(str(name))
        in_main = threading.get_ident() == threading.main_thread().ident
        shown = OpenSection(name, time.monotonic_ns(), None, goes_on_after_s, in_main)
        visit = OpenedSection(shown, phase_of_name(name), spoken=spoken)
        with self._lock:
            visit.phase_before = self.page.phase
            self._visits.append(visit)
            self._show_sections()
            if visit.phase and in_main:
                self.page.show_phase(visit.phase)
        if spoken:
            self._console.say(f"About to call {name}...")
            self.note("section_begin", {"name": name})
        return visit

    def advance(self, visit: OpenedSection, item: int) -> None:
        """Show the item that a tracked loop is at."""
        with self._lock:
            visit.shown = replace(visit.shown, item=item)
            self._show_sections()

    def close_section(self, visit: OpenedSection, error: BaseException | None) -> None:
        """Say how a critical section ended."""
        name, seconds = visit.shown.name, visit.seconds
        with self._lock:
            if visit not in self._visits:  # entered before a fork, by the process that we came from
                return
            self._visits.remove(visit)
            self._show_sections()
            if visit.phase and visit.shown.in_main_thread and self.page.phase == visit.phase:
                self.page.show_phase(visit.phase_before)
            if visit.phase == "checkpoint_save" and error is None:
                self._saved(seconds)
        if not visit.spoken:
            return
        if error is None:
            self._console.say(f"{name} returned ({seconds:.3f}s)")
            self.note("section_end", {"name": name, "seconds": seconds})
            return
        self._console.in_trouble = True
        reason = describe_exception(error)
        self._console.say(f"{name} raised {reason} ({seconds:.3f}s)")
        self.note("section_raised", {"name": name, "seconds": seconds, "error": reason})

    def _saved(self, seconds: float) -> None:
        """Count a save, as one however many parts of it had sections of their own."""
        if any(visit.phase == "checkpoint_save" for visit in self._visits):
            return
        step = self.page.mark_save(time.time_ns())
        self.note("saved", {"seconds": seconds, "step": step})

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

    def say(self, text: str) -> None:
        """Print a line of at most 1000 characters, and keep it in the journal."""
        text = one_line(text, LONGEST_SAID)
        self._console.say(text)
        self.note("said", {"text": text})

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
