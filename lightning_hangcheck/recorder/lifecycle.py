"""The recorder of this process: whether it records, where to, and until when."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from lightning_hangcheck import log
from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.identity import Identity, identify
from lightning_hangcheck.recorder.announcer import Announcer, harmless, last_words
from lightning_hangcheck.recorder.background import Pulse, SidecarWatch, unless_no_room
from lightning_hangcheck.recorder.console import Console
from lightning_hangcheck.recorder.journal_writer import JournalWriter
from lightning_hangcheck.recorder.page import BeatWriter, PageWriter
from lightning_hangcheck.recorder.process import (
    ProcessHooks,
    is_helper,
    is_multiprocessing_child,
    start_facts,
)
from lightning_hangcheck.recorder.training_thread import TrainingThread
from lightning_hangcheck.session.run_folders import settle_run_folder
from lightning_hangcheck.session.session import SESSION_VARIABLE, Session, join_session
from lightning_hangcheck.session.whose import PlaceTeller
from lightning_hangcheck.settings import Settings, from_environment

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from lightning_hangcheck.recorder.training_thread import TrainingEnd
    from lightning_hangcheck.rundir import RunFolder


EXIT_LIMIT_S = 1.0
REPLACED_WITHIN_S = 5.0
"""A sidecar announces itself half a second after its start; a busy machine takes a few."""


class Recorder(Announcer):
    """An announcer that is heard from `start` on, if this process is a rank.

    A process that multiprocessing started, a forked child, and a helper that a rank started do not
    record, unless `learn_identity` says that they are ranks. Nothing here raises or waits.

    Attributes:
        settings: Options, defaults where the environment names none that can be used.
        identity: Who this process is, as far as known.
        session: Where the ranks of this node meet; None while there is none.
        beat: Says "I advanced", and starts the recorder if nobody has; see `BeatWriter`.
        on_sidecar_lost: Called in the pulse thread when the sidecar was killed.
        on_pulse: Called in the pulse thread twice a second.
        meets_ranks: A process group is being made, or was made.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        training = TrainingThread(self._end_training)
        super().__init__(training.is_here)
        self._training = training
        self.settings = Settings()
        self.identity = Identity()
        self.session: Session | None = None
        self._beat_writer = BeatWriter(self.start)
        self.beat: Callable[[], None] = self._beat_writer.beat
        self.on_sidecar_lost: Callable[[], None] | None = None
        self.on_pulse: Callable[[], None] | None = None
        self.meets_ranks = False
        self._environment = environment
        self._pulse: Pulse | None = None
        self._announced_page: PageWriter | None = None
        self._place_teller: PlaceTeller | None = None
        self._begun = self._started = self._records = self._given_up = False
        self._life_lock = threading.RLock()
        self._hooks = ProcessHooks(self.mark_raised, self.finish, self.fall_silent)

    @property
    def beats_by_hand(self) -> bool:
        """Whether the script, or a loop of ours around its items, beats."""
        return self._beat_writer.count > 0

    def start(self) -> Recorder:
        """Begin to record if this process should; a second call does nothing."""
        if not self._started:
            with self._life_lock:
                if not self._begun:
                    self._begun = True
                    self._beat_writer.attach(self.page.buffer)
                    self._begin()
                    self._started = True
        return self

    @harmless
    def _begin(self) -> None:
        self.settings = from_environment(self._environment, _say_once)
        if self.settings.disable:
            return
        self.identity = identify(self._environment)
        for problem in self.identity.problems:
            _say_once(problem)
        if is_multiprocessing_child():
            return
        self.session = self._join()
        if self.session is None or not is_helper(self.session.pages, self.identity):
            self._record()

    @harmless
    def learn_identity(
        self, rank: int, world_size: int, local_rank: int | None, store_port: int | None = None
    ) -> None:
        """Take the word of Lightning, or of whoever knows, for which rank this process is."""
        self.start()
        if self.settings.disable or self._given_up:
            return
        with self._life_lock:
            # a child of multiprocessing may have set its variables since
            known = self.identity if self._records else identify(self._environment)
            self.identity = msgspec.structs.replace(
                known,
                rank=rank,
                world_size=world_size,
                local_rank=local_rank,
                store_port=known.store_port if store_port is None else store_port,
            )
            if not self._records:
                self.session = self.session or self._join()
                self._record()
            elif self.identity != known:
                self._introduce(self.identity)

    @harmless
    def be_rank_of_environment(self) -> None:
        """Be the rank that the environment names, as a child of multiprocessing that trains.

        Not where it only inherited those variables from a rank that records.
        """
        self.start()
        with self._life_lock:
            identity = identify(self._environment)
            unknown = identity.rank is None or identity.world_size is None
            if unknown or self._records or self.settings.disable or self._given_up:
                return
            self.identity = identity
            self.session = self.session or self._join()
            if self.session is None or not is_helper(self.session.pages, identity):
                self._record()

    @harmless
    def announce(self, number: int) -> None:
        """Show which rank this process is to be, on a page and nowhere else, until it joins.

        Args:
            number: That it was given by who started it: among the ranks that this one starts.
        """
        self.start()
        with self._life_lock:
            if self.settings.disable or self._given_up or self._records:
                return
            self.identity = identify(self._environment)
            self.session = self.session or self._join()
            self._announced_page = page = self._create_page()
            page.announce(number)
            self._speak_through(page, Console("off", self.identity), None)
            self._beat_writer.attach(self.page.buffer)
            self._hooks.install()

    @harmless
    def note_child_end(self, pid: int, exit_code: int) -> None:
        """Hand on how a child ended that has a page: nobody but its parent is sure to be told."""
        if self.session is not None:
            self.session.note_end(pid, exit_code)

    @harmless
    def finish(self) -> None:
        """Close what is open, within a second; called at exit."""
        if not self._records:
            return
        if self.page.ending == "running" and not self._training.goes_on_beside:
            self.mark_finished()
        if self._pulse:
            self._pulse.stop(EXIT_LIMIT_S)
        if self._journal:
            self._journal.close(EXIT_LIMIT_S)
        if self.session is not None:
            self.session.leave(os.getpid())

    @harmless
    def begin_training(self) -> None:
        """Say that the thread that calls trains from now on, where no other one does."""
        if self._training.begins_here() and self.page.ending != "running":
            self.page.end("running")
        if self._training.goes_on_beside:
            self.page.show_training("beside")

    @harmless
    def _end_training(self, end: TrainingEnd) -> None:
        """Say how the training ended in a thread whose process goes on without it."""
        if end.well:
            self.mark_finished()
        elif self.page.ending == "running":
            error = end.error()
            gone = f"an exception that was caught and let go in {end.left_at}"
            self._mark_raised(gone if error is None else last_words(error))
        self.page.show_training("over")

    def give_up(self) -> None:
        """Leave a page that shows only that the process lives: it is judged from outside then."""
        self._given_up = True
        blank = PageWriter(self.page.buffer)
        blank.identify(self.identity)
        self.fall_silent()

    def fall_silent(self) -> None:
        """Stop recording: in a forked child, where page, journal and threads are the parent's."""
        self._life_lock = threading.RLock()
        self._pulse = self.on_pulse = self._announced_page = None
        self._records = False
        super().fall_silent()
        self._beat_writer.attach(self.page.buffer)

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
        session, identity = self.session, self.identity
        journal = None
        if session is not None:
            start = partial(JournalWriter, session, partial(_settle, session))
            journal = unless_no_room(session, lambda: start(identity.rank, identity.ranks_here))
        page = self._announced_page or self._create_page()  # who reads the first looks for no other
        page.identify(identity)
        mode = "off" if self.settings.quiet else self.settings.console
        self._speak_through(page, Console(mode, self.identity), journal)
        self._beat_writer.attach(self.page.buffer)
        self._records = True
        self.note("start", **start_facts(self._environment, self.identity))
        self._hooks.install()
        if session is not None:
            self._place_teller = PlaceTeller(session, self._environment)
            self._tell_place()
            watch = SidecarWatch(
                session.sidecar_file,
                self._say_sidecar_lost,
                # for whoever keeps the sidecar, the launcher or a rank, to say so and replace it
                lambda: REPLACED_WITHIN_S if self.on_sidecar_lost is None else 0.0,
            )
            self._pulse = unless_no_room(
                session, lambda: Pulse(page, watch, self._run_errand, identity.ranks_here)
            )
            if self._pulse is None:
                watch.look()  # this once

    def _create_page(self) -> PageWriter:
        page = PageWriter.unseen()
        if self.session is not None:
            try:
                page = PageWriter.create(self.session.pages / f"{os.getpid()}.page")
            except OSError as error:
                log.once("page", f"no page in shared memory, so no sidecar sees this rank: {error}")
        page.show_phase("startup")
        return page

    def _tell_place(self) -> None:
        try:
            if self._place_teller is not None:
                self._place_teller.look()
        except OSError as error:
            log.once("place", f"this node's sidecar is not told which node it is on: {error}")

    def _run_errand(self) -> None:
        self._tell_place()
        if self.on_pulse is not None:
            self.on_pulse()

    def _say_sidecar_lost(self, pid: int) -> None:
        log.once(f"sidecar-{pid}", f"the sidecar (pid {pid}) is gone; training goes on unwatched")
        if self.on_sidecar_lost is not None:
            self.on_sidecar_lost()


def _say_once(sentence: str) -> None:
    log.once(sentence, sentence)


def _settle(session: Session) -> RunFolder:
    """Called in the journal's thread: who finds the named folder unusable says so for its node."""
    settled = settle_run_folder(session)
    if settled.trouble:
        log.once("run folder", settled.trouble)
    return settled.folder


process_recorder = Recorder(os.environ)
"""That of this process; not started, for whoever needs no more than its `beat`."""


def current() -> Recorder:
    """The recorder of this process, started by the first call."""
    return process_recorder.start()
