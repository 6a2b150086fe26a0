"""The recorder of this process: whether it records, where to, and until when.

The recorder's boundary: a failure of ours is said once, and nothing of it reaches training.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from functools import partial
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Protocol, TypeVar

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.recorder.announcer import Announcer
from lightning_hangcheck.recorder.background import SidecarWatch, start_journal, start_pulse
from lightning_hangcheck.recorder.console import Console
from lightning_hangcheck.recorder.page.beat_writer import BeatWriter
from lightning_hangcheck.recorder.page.writer import PageWriter
from lightning_hangcheck.recorder.process_facts import (
    is_helper,
    is_multiprocessing_child,
    start_facts,
    usable_settings,
)
from lightning_hangcheck.recorder.process_hooks import ProcessHooks
from lightning_hangcheck.session.joining import join_session
from lightning_hangcheck.session.run_folders import settle_run_folder
from lightning_hangcheck.session.session import SESSION_VARIABLE, Session
from lightning_hangcheck.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from lightning_hangcheck.model.slugs import Phase
    from lightning_hangcheck.recorder.background import Pulse
    from lightning_hangcheck.recorder.sections import OpenedSection
    from lightning_hangcheck.rundir.layout import RunFolder


class GivesUp(Protocol):
    """What can stop its work for good."""

    def give_up(self) -> None:
        """Do nothing more from now on."""


Owner = TypeVar("Owner", bound=GivesUp)
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


EXIT_LIMIT_S = 1.0
REPLACED_WITHIN_S = 5.0
"""A sidecar announces itself half a second after its start; a busy machine takes a few."""


class Recorder:
    """Records this process from `start` on, if it is a rank.

    A process that multiprocessing started, a forked child, and a helper that a rank started do not
    record, unless `learn_identity` says that they are ranks. Nothing here raises or waits.

    Args:
        environment: Of this process; the session is exported in it, for the processes it starts.

    Attributes:
        settings: Options, defaults where the environment names none that can be used.
        identity: Who this process is, as far as known.
        session: Where the ranks of this node meet; None while there is none.
        heart: What `beat` calls.
        on_sidecar_lost: Called in the pulse thread when the sidecar was killed.
        on_pulse: Called in the pulse thread twice a second.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self.settings = Settings()
        self.identity = Identity()
        self.session: Session | None = None
        self.heart = BeatWriter(self.start)
        self.on_sidecar_lost: Callable[[], None] | None = None
        self.on_pulse: Callable[[], None] | None = None
        self._environment = environment
        self._page = PageWriter.unseen()
        self._announcer: Announcer | None = None
        self._pulse: Pulse | None = None
        self._begun = self._started = self._given_up = False
        self._lock = threading.RLock()
        self._hooks = ProcessHooks(self.mark_raised, self.finish, self.fall_silent)

    def start(self) -> Recorder:
        """Begin to record if this process should; a second call does nothing."""
        if not self._started:
            with self._lock:
                if not self._begun:
                    self._begun = True
                    self.heart.attach(self._page.buffer)
                    self._begin()
                    self._started = True
        return self

    @harmless
    def _begin(self) -> None:
        self.settings = usable_settings(self._environment)
        if self.settings.disable:
            return
        self.identity = identify(self._environment)
        for problem in self.identity.problems:
            log.once(problem, problem)
        if is_multiprocessing_child():
            return
        self.session = self._join()
        if self.session is None or not is_helper(self.session.pages, self.identity):
            self._record()

    @harmless
    def learn_identity(self, rank: int, world_size: int, local_rank: int | None) -> None:
        """Take the word of Lightning, or of whoever knows, for which rank this process is."""
        self.start()
        if self.settings.disable or self._given_up:
            return
        with self._lock:
            known = self.identity
            self.identity = msgspec.structs.replace(
                known, rank=rank, world_size=world_size, local_rank=local_rank
            )
            if self._announcer is None:
                self.session = self.session or self._join()
                self._record()
            elif self.identity != known:
                self._announcer.identify(self.identity)

    def enter_phase(
        self,
        phase: Phase | None,
        epoch: int | None = None,
        step: int | None = None,
        batch: int | None = None,
    ) -> None:
        """Show where in its life the rank is; counts as progress. About 0.5 microseconds.

        Args:
            phase: None for none that has a name.
            epoch: None keeps the one shown; so do the others.
            step: Optimizer steps so far.
            batch: Index in the epoch.
        """
        try:
            self._page.enter_phase(phase, epoch, step, batch)
        except (KeyError, TypeError, struct.error) as error:
            log.once("phase", f"enter_phase({phase!r}) was ignored: {error!r}")

    @harmless
    def leave_startup(self) -> None:
        """Say that this rank no longer starts up, unless it has said where it is."""
        if self._page.phase == "startup":
            self._page.show_phase(None)

    @harmless
    def checkpoint(self, name: str, number: int | None = None, *, ours: bool = False) -> None:
        """Say that a named point was passed; ``ours`` were found without the script's help."""
        if self._announcer:
            self._announcer.checkpoint(name, number, ours=ours)

    @harmless
    def open_section(
        self, name: str, *, spoken: bool = True, goes_on_after_s: float | None = None
    ) -> OpenedSection | None:
        """Say that a critical section begins; one that is not spoken is on the page only."""
        if self._announcer is None:
            return None
        return self._announcer.open_section(name, spoken=spoken, goes_on_after_s=goes_on_after_s)

    @harmless
    def advance(self, visit: OpenedSection, item: int) -> None:
        """Show the item that a tracked loop, one of the open sections, is at."""
        if self._announcer:
            self._announcer.advance(visit, item)

    @harmless
    def is_in(self, name: str) -> bool:
        """Whether a section of this name is open."""
        return self._announcer is not None and self._announcer.is_in(name)

    @harmless
    def close_section(self, visit: OpenedSection, error: BaseException | None) -> None:
        """Say how it ended; nothing in a child that was forked within it."""
        if self._announcer:
            self._announcer.close_section(visit, error)

    @harmless
    def say(self, text: str) -> None:
        """Print a line, and keep it in the journal."""
        if self._announcer:
            self._announcer.say(text)

    @harmless
    def note(self, kind: str, /, **fields: object) -> None:
        """Write a line of the journal."""
        if self._announcer:
            self._announcer.note(kind, fields)

    @harmless
    def mark_raised(self, error: BaseException) -> None:
        """Leave this exception as last words; they stay unless `mark_finished` is called."""
        if self._announcer:
            self._announcer.raised(error)

    @harmless
    def mark_finished(self) -> None:
        """Say that the program has done all it should."""
        if self._announcer:
            self._announcer.finished()

    @harmless
    def begin_shutdown(self) -> None:
        """Show that the interpreter ends, unless an exception ends it: its place says more."""
        if self._announcer and self._page.ending == "running":
            self._announcer.open_section("interpreter shutdown", spoken=False)

    @harmless
    def finish(self) -> None:
        """Close what is open, within a second; called at exit."""
        if self._announcer is None:
            return
        if self._page.ending == "running":
            self._announcer.finished()
        if self._pulse:
            self._pulse.stop(EXIT_LIMIT_S)
        self._announcer.close(EXIT_LIMIT_S)
        if self.session is not None:
            self.session.leave(os.getpid())

    def give_up(self) -> None:
        """Leave a page that shows only that the process lives: it is judged from outside then."""
        self._given_up = True
        blank = PageWriter(self._page.buffer)
        self._identify(blank)
        self.fall_silent()

    def fall_silent(self) -> None:
        """Stop recording: in a forked child, where page, journal and threads are the parent's."""
        self._lock = threading.RLock()
        self._announcer = self._pulse = self.on_pulse = None
        self._page = PageWriter.unseen()
        self.heart.attach(self._page.buffer)

    def _join(self) -> Session | None:
        try:
            session = join_session(self._environment, self.identity, self.settings.run_dir)
        except (OSError, UnreadableRun) as error:
            log.once("session", f"this rank is seen on the console only: {error}")
            return None
        self._environment[SESSION_VARIABLE] = str(session.path)
        return session

    def _record(self) -> None:
        """Open page, console and journal, and begin to speak."""
        journal = None
        if self.session is not None:
            journal = start_journal(self.session, self.identity, partial(_settle, self.session))
        self._page = self._create_page()
        self.heart.attach(self._page.buffer)
        self._announcer = Announcer(
            self._page, Console(self.settings.console, self.identity), journal
        )
        self._announcer.note("start", start_facts(self._environment, self.identity))
        self._hooks.install()
        if self.session is not None:
            watch = SidecarWatch(
                self.session.sidecar_file, self._say_sidecar_lost, self._patience_with_sidecar_s
            )
            self._pulse = start_pulse(
                self.session, self.identity, self._page, watch, self._run_errand
            )

    def _create_page(self) -> PageWriter:
        page = PageWriter.unseen()
        if self.session is not None:
            try:
                page = PageWriter.create(self.session.pages / f"{os.getpid()}.page")
            except OSError as error:
                log.once("page", f"no page in shared memory, so no sidecar sees this rank: {error}")
        self._identify(page)
        page.show_phase("startup")
        return page

    def _identify(self, page: PageWriter) -> None:
        me = self.identity
        page.identify(me.rank, me.world_size, me.local_rank, me.round)

    def _run_errand(self) -> None:
        if self.on_pulse is not None:
            self.on_pulse()

    def _patience_with_sidecar_s(self) -> float:
        """Time for whoever keeps the sidecar, the launcher or a rank, to say so and replace it."""
        return REPLACED_WITHIN_S if self.on_sidecar_lost is None else 0.0

    def _say_sidecar_lost(self, pid: int) -> None:
        log.once(f"sidecar-{pid}", f"the sidecar (pid {pid}) is gone; training goes on unwatched")
        if self.on_sidecar_lost is not None:
            self.on_sidecar_lost()


def _settle(session: Session) -> RunFolder:
    """Called in the journal's thread: who finds the named folder unusable says so for its node."""
    settled = settle_run_folder(session)
    if settled.trouble:
        log.once("run folder", settled.trouble)
    return settled.folder


_recorder = Recorder(os.environ)


def current() -> Recorder:
    """The recorder of this process, started by the first call."""
    return _recorder.start()


def heart() -> BeatWriter:
    """Its heart, without starting it: the first beat does."""
    return _recorder.heart
