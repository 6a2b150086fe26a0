"""All that a recording process says, and through what: page, console and journal.

What is said is one clean line: no newlines, no secrets, bounded. A failure in here is said once,
and nothing of it reaches training.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import threading
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from msgspec.structs import replace

from lightning_hangcheck import log
from lightning_hangcheck.identity import Identity
from lightning_hangcheck.model.beat import OpenSection
from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.slugs import phase_after_checkpoint, phase_of_name
from lightning_hangcheck.recorder.console import Console
from lightning_hangcheck.recorder.page import PageWriter
from lightning_hangcheck.recorder.process import versions
from lightning_hangcheck.recorder.sections import OpenedSection
from lightning_hangcheck.text import shown as plain_text
from lightning_hangcheck.text.redaction import redact_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lightning_hangcheck.model.beat import Membership
    from lightning_hangcheck.recorder.journal_writer import JournalWriter

LONGEST_NAME = 200
LONGEST_LAST_WORDS = 300
# redaction looks at this much of a message: enough for what is shown, whatever its length
_LOOKED_AT = 4000
_LONGEST_SHAPE = 64  # so many characters are enough to know any secret by its shape
_LOOKED_THROUGH = 100_000
_HANDED_ON = re.compile(
    r"Caught \w+ (?P<where>in [^\n]{1,80})\.\nOriginal Traceback[^\n]*\n(?P<calls>.*)", re.DOTALL
)
_WRITTEN_CALL = re.compile(
    r'^  File "(?P<file>[^"\n]+)", line (?P<line>\d{1,9}), in (?P<function>[^\n]+)$', re.MULTILINE
)
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
    """The exception, what it came from and the innermost frame of the user's own code.

    Returns:
        At most 300 characters, for example ``ValueError: no such split (from KeyError: 'dev') in
        load_vocab (data.py:41)``; a long message gives way to the rest.
    """
    elsewhere = _raised_in_worker(error)
    frame = elsewhere[1] if elsewhere is not None else user_frame(error.__traceback__)
    place = "" if frame is None else " " + one_line(f"in {frame}", LONGEST_LAST_WORDS // 2)
    longest = LONGEST_LAST_WORDS - len(place)
    if elsewhere is not None:
        return one_line(elsewhere[0], longest) + place
    first = _first_of_chain(error)
    if first is not error:
        place = f" (from {describe_exception(first, LONGEST_LAST_WORDS // 3)}){place}"
    return describe_exception(error, LONGEST_LAST_WORDS - len(place)) + place


def _first_of_chain(error: BaseException) -> BaseException:
    """What was raised first of what led to an exception, as Python's own traceback shows it."""
    chain = [error]
    while True:
        last = chain[-1]
        before = last.__cause__ if last.__suppress_context__ else last.__context__
        if before is None or any(before is one for one in chain):
            return last
        chain.append(before)


def _raised_in_worker(error: BaseException) -> tuple[str, Frame | None] | None:
    """What was raised in a DataLoader's worker or another thread, and where in the user's code.

    Torch (ExceptionWrapper in torch/_utils.py, 2.5 to 2.13) raises the same type again, and hands
    the traceback on as text in the message, which is all that is left of it.

    Returns:
        None where nothing was handed on.
    """
    try:
        told = _HANDED_ON.match(str(error)[:_LOOKED_THROUGH])
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything: then nothing is told
        return None
    if told is None:
        return None
    calls = list(_WRITTEN_CALL.finditer(told["calls"]))
    users = [call for call in calls if is_users(call["file"])]
    after = told["calls"][calls[-1].end() :] if calls else told["calls"]
    words = [line for line in after.splitlines() if not line.startswith("  ")]
    place = users[-1] if users else None
    frame = place and Frame(place["function"], _shorten(place["file"]), int(place["line"]))
    return f"{' '.join(filter(None, words)) or type(error).__name__} ({told['where']})", frame


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


Owner = TypeVar("Owner", bound="Announcer")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def harmless(
    method: Callable[Concatenate[Owner, Arguments], Result],
) -> Callable[Concatenate[Owner, Arguments], Result | None]:
    """Method decorator: a failure is said once, its owner gives up, and None is returned."""

    @functools.wraps(method)
    def guarded(
        owner: Owner, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        try:
            return method(owner, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the observer never hurts the observed
            log.once("recorder", f"recording stops, training goes on: {error!r}")
            owner.give_up()
            return None

    return guarded


class Announcer:
    """Speaks for one process, to nobody until `_speak_through` says where; any thread may call it.

    Attributes:
        page: What the sidecar reads.
        in_training_thread: Whether the thread that calls it is the one that trains.
    """

    page: PageWriter

    def __init__(self, in_training_thread: Callable[[], bool]) -> None:
        self.in_training_thread = in_training_thread
        Announcer.fall_silent(self)

    def give_up(self) -> None:
        """Say nothing more: something in here has failed."""
        self.fall_silent()

    def fall_silent(self) -> None:
        """Speak to nobody from now on."""
        self._speak_through(PageWriter.unseen(), Console("off", Identity()), None)

    def _speak_through(
        self, page: PageWriter, console: Console, journal: JournalWriter | None
    ) -> None:
        """Speak through these from now on, as one who has said nothing and opened nothing yet."""
        self.page = page
        self._console = console
        self._journal = journal
        self._open: list[OpenedSection] = []
        self._last_number = 0
        self._script_counts = False
        # re-entrant: a signal handler may call us in the thread that is in here already
        self._lock = threading.RLock()

    def _introduce(self, identity: Identity) -> None:
        """Say which rank this is, as soon as it is known."""
        rank, world_size, local_rank = identity.rank, identity.world_size, identity.local_rank
        self._console.identify(identity)
        self.page.identify(identity)
        if self._journal and rank is not None:
            self._journal.settle(rank)
        self.note(
            "identity",
            rank=rank,
            world_size=world_size,
            local_rank=local_rank,
            versions=versions(),
        )

    @harmless
    def show_membership(self, membership: Membership) -> None:
        """Say whether this rank is in a process group."""
        self.page.show_membership(membership)

    @harmless
    def leave_startup(self) -> None:
        """Say that this rank no longer starts up, unless it has said where it is."""
        if self.page.phase == "startup":
            self.page.show_phase(None)

    @harmless
    def checkpoint(self, name: str, number: int | None = None, *, ours: bool = False) -> None:
        """Say that a checkpoint was passed; its number is one more than the last unless given.

        Args:
            name: Of the checkpoint.
            number: Of the checkpoint.
            ours: Found without the script's help: none is said once the script says its own.
        """
        name = clean_name(plain_text.text_of(name))
        with self._lock:
            if ours and self._script_counts:
                return
            self._script_counts = not ours
            number = self._last_number + 1 if number is None else number
            self._last_number = number
            self.page.mark_checkpoint(number, name, time.time_ns())
            phase = phase_after_checkpoint(name, self.page.phase)
            if phase != self.page.phase:
                self.page.show_phase(phase)
        self._console.say(f"CHECKPOINT {number}: {name}")
        self.note("checkpoint", number=number, name=name)

    @harmless
    def is_in(self, name: str) -> bool:
        """Whether a section of this name is open, in any thread."""
        with self._lock:
            return any(one.shown.name == name for one in self._open)

    @harmless
    def open_section(
        self, name: str, *, spoken: bool = True, goes_on_after_s: float | None = None
    ) -> OpenedSection:
        """Say that a critical section begins; on the page only unless it is spoken."""
        name = clean_name(plain_text.text_of(name))
        trains = self.in_training_thread()
        shown = OpenSection(name, time.monotonic_ns(), None, goes_on_after_s, trains)
        opened = OpenedSection(shown, phase_of_name(name), spoken=spoken)
        with self._lock:
            opened.phase_before = self.page.phase
            self._open.append(opened)
            self._show_sections(advanced=trains)
            if opened.phase and trains:
                self.page.show_phase(opened.phase)
        if spoken:
            self._console.say(f"About to call {name}...")
            self.note("section_begin", name=name)
        return opened

    @harmless
    def advance(self, opened: OpenedSection, item: int) -> None:
        """Show the item that a tracked loop, one of the open sections, is at."""
        with self._lock:
            opened.shown = replace(opened.shown, item=item)
            self._show_sections(advanced=True)

    @harmless
    def close_section(self, opened: OpenedSection, error: BaseException | None) -> None:
        """Say how a critical section ended; nothing in a child that was forked within it."""
        name, seconds = opened.shown.name, opened.seconds
        with self._lock:
            if opened not in self._open:  # it was opened before a fork, by the parent
                return
            self._open.remove(opened)
            self._show_sections(advanced=opened.shown.in_main_thread)
            if opened.phase and opened.shown.in_main_thread and self.page.phase == opened.phase:
                self.page.show_phase(opened.phase_before)
            saves = any(one.phase == "checkpoint_save" for one in self._open)
            if opened.phase == "checkpoint_save" and error is None and not saves:
                # one save, however many parts of it had sections of their own
                self.note("saved", seconds=seconds, step=self.page.mark_save(time.time_ns()))
        if not opened.spoken:
            return
        if error is None:
            self._console.say(f"{name} returned ({seconds:.3f}s)")
            self.note("section_end", name=name, seconds=seconds)
            return
        self._console.in_trouble = True
        reason = describe_exception(error)
        self._console.say(f"{name} raised {reason} ({seconds:.3f}s)")
        self.note("section_raised", name=name, seconds=seconds, error=reason)

    def _show_sections(self, *, advanced: bool) -> None:
        self.page.show_sections([one.shown for one in self._open], advanced=advanced)

    @harmless
    def say(self, text: str) -> None:
        """Print a line of at most 1000 characters, and keep it in the journal."""
        text = one_line(text, LONGEST_SAID)
        self._console.say(text)
        self.note("said", text=text)

    @harmless
    def note(self, kind: str, /, **fields: object) -> None:
        """Write a line of the journal."""
        if self._journal:
            self._journal.add(kind, fields)

    @harmless
    def mark_raised(self, error: BaseException) -> None:
        """Leave this exception as last words; they stay until training goes on or is finished."""
        self._mark_raised(last_words(error))

    @harmless
    def mark_going_on(self) -> None:
        """Training goes on: what a stage raised was caught, and ends nothing."""
        if self.page.ending == "raised":
            self.page.end("running")
            self.note("went_on")

    def _mark_raised(self, words: str) -> None:
        self._console.in_trouble = True
        self.page.end("raised", words)
        self.note("raised", last_words=words)

    @harmless
    def mark_finished(self) -> None:
        """Say that the program has done all it should."""
        self.page.end("finished")
        self.note("finished")

    @harmless
    def begin_shutdown(self) -> None:
        """Show that the interpreter ends, unless an exception ends it: its place says more."""
        if self.page.ending == "running":
            self.open_section("interpreter shutdown", spoken=False)
