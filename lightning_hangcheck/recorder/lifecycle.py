"""The recorder of this process: whether, where and until when it records, and all that it reports.

A failure in here is logged once, and never reaches training.
"""

from __future__ import annotations

import functools
import os
import threading
import time

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.model.words import phase_after_checkpoint, phase_of_name
from lightning_hangcheck.recorder import process
from lightning_hangcheck.recorder.announcer import (
    CONSOLE_MODES,
    Console,
    clean_name,
    describe_exception,
    last_words,
    one_line,
)
from lightning_hangcheck.recorder.journal_writer import JournalWriter
from lightning_hangcheck.recorder.page import BeatWriter, OpenedSection, PageWriter
from lightning_hangcheck.session.session import (
    SESSION_VARIABLE,
    Session,
    join_session,
    place_in,
    spawned_as,
    tell_place,
)
from lightning_hangcheck.text.shown import NANOSECONDS, text_of

TYPE_CHECKING = False  # typing takes 4 ms
if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping
    from typing import Concatenate, Literal, ParamSpec, TypeVar

    from lightning_hangcheck.recorder.page import Call
    from lightning_hangcheck.settings import Settings

    Arguments = ParamSpec("Arguments")
    Result = TypeVar("Result")
    State = Literal["new", "starting", "off", "quiet", "recording", "broken"]
    """``off`` by a setting; ``quiet`` if this is no rank, as far as known; ``broken`` for good."""


EXIT_LIMIT_S = 1.0
REPLACED_WITHIN_S = 5.0
"""A sidecar announces itself 0.5 s after its start; on a busy machine it takes a few seconds."""
LONGEST_SAID = 1000  # characters of a line that a hook prints


def _say_once(problem: str) -> None:
    log.once(problem, problem)


def harmless(
    method: Callable[Concatenate[Recorder, Arguments], Result],
) -> Callable[Concatenate[Recorder, Arguments], Result | None]:
    """Method decorator: a failure is logged once, the recorder gives up, and None is returned."""

    @functools.wraps(method)
    def guarded(
        owner: Recorder, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result | None:
        try:
            return method(owner, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - the observer never hurts the observed
            log.once("recorder", f"recording stops, training goes on: {error!r}")
            owner.give_up()
            return None

    return guarded


class Recorder:
    """Reports for this process from `start` on, if it is a rank: on page, console and journal.

    Children of multiprocessing, forked children, and helpers that a rank started do not record,
    unless `learn_identity` says that they are ranks. Nothing here raises or waits; any thread may
    call it. The pulse thread calls ``on_pulse`` twice a second, and ``on_sidecar_lost`` when the
    sidecar was killed. ``meets_ranks``: a process group is being made, or was made. ``beats``
    counts those of the script, or of a tracked loop of ours.
    """

    page: PageWriter
    on_pulse: Callable[[], None] | None
    _pulse: process.Pulse | None

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._environment = environment
        self._state: State = "new"
        self._training = process.TrainingThread(self._end_training)
        self.in_training_thread = self._training.is_here
        self.identity = Identity()
        self.session: Session | None = None
        self.beats = BeatWriter(self.start)
        self.beat: Callable[[], None] = self.beats.beat
        self.on_sidecar_lost: Callable[[], None] | None = None
        self.meets_ranks = self._place_is_sent = False
        self._be_silent("new")

    @functools.cached_property
    def settings(self) -> Settings:
        """All settings; a rank whose launcher has checked them reads them late, if ever: 15 ms."""
        from lightning_hangcheck.settings import from_environment

        return from_environment(self._environment, _say_once)

    def start(self) -> Recorder:
        """Begin to record if this process should; a second call does nothing."""
        if self._state in ("new", "starting"):
            with self._life_lock:
                if self._state == "new":
                    self._state = "starting"
                    self.beats.attach(self.page.buffer)
                    self._begin()
                    if self._state == "starting":
                        self._state = "quiet"
        return self

    @harmless
    def _begin(self) -> None:
        said = self._environment.get
        self._console_mode = said("HANGCHECK_CONSOLE") or "auto"
        checked = said(SESSION_VARIABLE) and self._console_mode in CONSOLE_MODES
        if not checked or said("HANGCHECK_DISABLE") or said("HANGCHECK_QUIET"):
            self._console_mode = "off" if self.settings.quiet else self.settings.console
            if self.settings.disable:
                self._state = "off"
                return
        self.identity = identify(self._environment)
        for problem in self.identity.problems:
            _say_once(problem)
        if spawned_as() is None:
            self._record(unless_helper=True)

    @harmless
    def learn_identity(
        self, rank: int, world_size: int, local_rank: int | None, store_port: int | None = None
    ) -> None:
        """Accept which rank this process is, from Lightning or another source that knows."""
        self.start()
        with self._life_lock:
            # a child of multiprocessing may have set its variables since
            known = self.identity if self._state == "recording" else identify(self._environment)
            learnt = known._replace(
                rank=rank,
                world_size=world_size,
                local_rank=local_rank,
                store_port=store_port or known.store_port,
            )
            if self._state == "quiet":
                self.identity = learnt
                self._record()
            elif self._state == "recording" and learnt != known:
                self.identity = learnt
                self._console.identify(learnt)
                self.page.identify(learnt)
                if self._journal:
                    self._journal.settle(rank)
                facts = {"rank": rank, "world_size": world_size, "local_rank": local_rank}
                self._note("identity", **facts, versions=process.versions())

    @harmless
    def be_rank_of_environment(self) -> None:
        """In a multiprocessing child that trains, be the environment's rank, unless inherited."""
        self.start()
        with self._life_lock:
            identity = identify(self._environment)
            known = identity.rank is not None and identity.world_size is not None
            if known and self._state == "quiet":
                self.identity = identity
                self._record(unless_helper=True)

    @harmless
    def announce(self, number: int) -> None:
        """Show the number that the parent gave this process, only on a page, until it joins."""
        self.start()
        with self._life_lock:
            if self._state == "quiet":
                self.identity = identify(self._environment)
                self._speak_through(self._make_page(self._join()), "off", None)
                self.page.show(announced=number)
                self._report_ends()

    def _join(self) -> Session | None:
        if self.session is None:
            try:
                run_dir = self._environment.get("HANGCHECK_RUN_DIR") or None
                self.session = join_session(self._environment, self.identity, run_dir)
                self._environment[SESSION_VARIABLE] = str(self.session.path)
            except (OSError, UnreadableRun) as error:
                log.once("session", f"this rank is seen on the console only: {error}")
        return self.session

    def _record(self, *, unless_helper: bool = False) -> None:
        session, identity = self._join(), self.identity
        if unless_helper and session is not None and process.is_helper(session.pages, identity):
            return
        journal = session and process.unless_no_room(
            session, lambda: JournalWriter(session, identity.rank, identity.ranks_here)
        )
        page = self._make_page(session)
        page.identify(identity)
        self._speak_through(page, self._console_mode, journal)
        self._state = "recording"
        self._note("start", **process.start_facts(self._environment, identity))
        self._report_ends()
        if session is None:
            return
        self._place_is_sent = False
        self._tell_place()

        def say_lost(pid: int) -> None:
            log.once(
                f"sidecar-{pid}", f"the sidecar (pid {pid}) is gone; training goes on unwatched"
            )
            if self.on_sidecar_lost is not None:
                self.on_sidecar_lost()

        def run_task() -> None:
            self._tell_place()
            if self._journal:
                self._journal.flush()
            if self.on_pulse is not None:
                self.on_pulse()

        # time for the sidecar's launcher to replace it, unless that is this rank's own task
        patience_s = lambda: REPLACED_WITHIN_S if self.on_sidecar_lost is None else 0.0  # noqa: E731
        pulse = process.Pulse(page, session.sidecar_file, say_lost, patience_s, run_task)
        self._pulse = process.unless_no_room(session, lambda: pulse.start(identity.ranks_here))
        if self._pulse is None:
            pulse.look()  # just once

    def _report_ends(self) -> None:
        process.report_ends(self.mark_raised, self.finish, self.fall_silent, self.show_thread_end)
        if spawned_as() is not None:
            process.report_end_of_child(self.mark_raised, self.finish)

    def _make_page(self, session: Session | None) -> PageWriter:
        if self.page.is_shared:  # this process was announced, and readers keep that page open
            return self.page
        page = PageWriter.unseen()
        if session is not None:
            try:
                page = PageWriter.create(session.pages / f"{os.getpid()}.page")
            except OSError as error:
                log.once("page", f"no page in shared memory, so no sidecar sees this rank: {error}")
        page.show_phase("startup")
        return page

    def _speak_through(self, page: PageWriter, mode: str, journal: JournalWriter | None) -> None:
        """Report through these from now on, with nothing said and nothing opened yet."""
        self.page, self._console, self._journal = page, Console(mode, self.identity), journal
        self._open: list[OpenedSection] = []
        self._last_number = 0
        self._script_counts = False
        # re-entrant: a signal handler may interrupt the thread that holds it
        self._lock = threading.RLock()
        if self._state != "new":  # until then a beat starts the recording
            self.beats.attach(page.buffer)

    def _be_silent(self, state: State) -> None:
        self._state = state
        self._life_lock = threading.RLock()
        self._pulse = self.on_pulse = None
        self._speak_through(PageWriter.unseen(), "off", None)

    def fall_silent(self) -> None:
        """Stop recording: in a forked child, whose page, journal and threads are the parent's."""
        self._be_silent("broken" if self._state == "broken" else "quiet")

    def give_up(self) -> None:
        """After a failure in here, only show on a blank page that the process is alive."""
        PageWriter(self.page.buffer).identify(self.identity)
        self._be_silent("broken")

    def _tell_place(self) -> None:
        """As a node's first rank, tell the sidecar which node this is, once known."""
        first = self._environment.get("LOCAL_RANK", "0") == "0"
        if first and not self._place_is_sent and self.session is not None:
            place = place_in(self._environment)
            if place is not None:
                self._place_is_sent = True
                tell_place(self.session, place)

    @harmless
    def checkpoint(self, name: str, number: int | None = None, *, ours: bool = False) -> None:
        """Report a passed checkpoint; its number is the last plus 1 unless given.

        Checkpoints of ``ours``, found without the script's help, stop once the script has its own.
        """
        name = clean_name(text_of(name))
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
        self._note("checkpoint", number=number, name=name)

    @harmless
    def is_in(self, name: str) -> bool:
        """Whether a section of this name is open, in any thread."""
        with self._lock:
            return any(section.name == name for section in self._open)

    @harmless
    def open_section(
        self, name: str, *, spoken: bool = True, goes_on_after_s: float | None = None
    ) -> OpenedSection:
        """Report that a critical section begins; only on the page unless it is spoken."""
        name = clean_name(text_of(name))
        opened = OpenedSection(
            name,
            time.monotonic_ns(),
            goes_on_after_s=goes_on_after_s,
            in_main_thread=self.in_training_thread(),
            phase=phase_of_name(name),
            spoken=spoken,
        )
        with self._lock:
            opened.phase_before = self.page.phase
            self._open.append(opened)
            self.page.show_sections(self._open, advanced=opened.in_main_thread)
            if opened.phase and opened.in_main_thread:
                self.page.show_phase(opened.phase)
        if spoken:
            self._console.say(f"About to call {name}...")
            self._note("section_begin", name=name)
        return opened

    @harmless
    def advance(self, opened: OpenedSection, item: int) -> None:
        """Show which item a tracked loop, one of the open sections, is at."""
        with self._lock:
            opened.item = item
            self.page.show_sections(self._open)

    @harmless
    def close_section(self, opened: OpenedSection, error: BaseException | None) -> None:
        """Report how a critical section ended; not in a child that was forked within it."""
        seconds = (time.monotonic_ns() - opened.since_ns) / NANOSECONDS
        with self._lock:
            if opened not in self._open:  # it was opened before a fork, by the parent
                return
            self._open.remove(opened)
            self.page.show_sections(self._open, advanced=opened.in_main_thread)
            if opened.phase and opened.in_main_thread and self.page.phase == opened.phase:
                self.page.show_phase(opened.phase_before)
            saves = any(section.phase == "checkpoint_save" for section in self._open)
            if opened.phase == "checkpoint_save" and error is None and not saves:
                # count one save, even if parts of it had sections of their own
                self._note("saved", seconds=seconds, step=self.page.mark_save(time.time_ns()))
        if not opened.spoken:
            return
        kind, how, facts = "section_end", "returned", {"name": opened.name, "seconds": seconds}
        if error is not None:
            self._console.in_trouble = True
            reason = describe_exception(error)
            kind, how, facts = "section_raised", f"raised {reason}", facts | {"error": reason}
        self._console.say(f"{opened.name} {how} ({seconds:.3f}s)")
        self._note(kind, **facts)

    @harmless
    def say(self, text: str) -> None:
        """Print a line of at most 1000 characters, and keep it in the journal."""
        text = one_line(text, LONGEST_SAID)
        self._console.say(text)
        self._note("said", text=text)

    @harmless
    def note(self, kind: str, /, **fields: object) -> None:
        """Write a line of the journal."""
        self._note(kind, **fields)

    def _note(self, kind: str, /, **fields: object) -> None:
        if self._journal:
            self._journal.add(kind, fields)

    @harmless
    def leave_startup(self) -> None:
        """End the startup phase, unless the rank has already shown another phase."""
        if self.page.phase == "startup":
            self.page.show_phase(None)

    @harmless
    def begin_training(self) -> None:
        """Take the calling thread as the training thread, unless another thread trains."""
        if self._training.begins_here() and self.page.ending != "running":
            self.page.end("running")
        if self._training.trains_in_another_thread:
            self.page.show(training="beside")

    @harmless
    def _end_training(self, well: bool, left_at: Call) -> None:
        """Report how training ended in a thread whose process continues."""
        if well:
            self.mark_finished()
        elif self.page.ending == "running":
            self.mark_raised(f"an exception that left {left_at}")
        self.page.show(training="over")

    @harmless
    def mark_raised(self, error: BaseException | str) -> None:
        """Keep this exception as last words, until training continues or is finished."""
        words = error if isinstance(error, str) else last_words(error)
        self._console.in_trouble = True
        self.page.end("raised", words)
        self._note("raised", last_words=words)

    @harmless
    def show_thread_end(self, name: str, error: BaseException) -> None:
        """Show the exception that has ended another thread: somebody may wait for its results."""
        if not isinstance(error, SystemExit):
            self.page.end_thread(f"{name}: {last_words(error)}")

    @harmless
    def mark_going_on(self) -> None:
        """Record that training continues: an exception of an earlier stage was caught."""
        if self.page.ending == "raised":
            self.page.end("running")
            self._note("went_on")

    @harmless
    def mark_finished(self) -> None:
        """Record that the program has done all its work."""
        self.page.end("finished")
        self._note("finished")

    @harmless
    def begin_shutdown(self) -> None:
        """Show that the interpreter exits; after an exception, its place says more."""
        if self.page.ending == "running":
            self.open_section("interpreter shutdown", spoken=False)

    @harmless
    def finish(self) -> None:
        """Close everything within a second each; called at exit."""
        if self._state != "recording":
            return
        if self.page.ending == "running" and not self._training.trains_in_another_thread:
            self.mark_finished()
        if self._pulse:
            self._pulse.stop(EXIT_LIMIT_S)
        if self._journal:
            self._journal.close(EXIT_LIMIT_S)
        if self.session is not None:
            self.session.leave(os.getpid())


class Section:
    """``with section("WandbLogger constructor"):`` reports its begin and its end or exception."""

    # Sections nest, and several threads may have open sections. Exceptions are shown and propagate.
    # A guard that ends a wait by itself, after which the program continues, passes its limit: until
    # then the wait is no hang.

    __slots__ = ("_given", "_opened", "_recorder")

    def __init__(
        self,
        recorder: Recorder,
        name: str,
        *,
        spoken: bool = True,
        goes_on_after_s: float | None = None,
    ) -> None:
        self._recorder, self._given = recorder, (name, spoken, goes_on_after_s)
        self._opened: list[OpenedSection | None] = []

    def __enter__(self) -> None:
        name, spoken, limit_s = self._given
        opened = self._recorder.open_section(name, spoken=spoken, goes_on_after_s=limit_s)
        self._opened.append(opened)

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        opened = self._opened.pop()
        if opened is not None:
            self._recorder.close_section(opened, error)


process_recorder = Recorder(os.environ)
"""The recorder of this process; not started, for code that only needs its `beat`."""


def current() -> Recorder:
    """Return the recorder of this process, started by the first call."""
    return process_recorder.start()
