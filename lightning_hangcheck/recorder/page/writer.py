"""Writes this process's page of shared memory, from which the sidecar learns how it goes."""

from __future__ import annotations

import os
import struct
from time import monotonic_ns
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.files.atomic import NEW_FILE, PRIVATE_FILE, name_beside
from lightning_hangcheck.files.reserved_memory import reserve
from lightning_hangcheck.recorder.page import layout as layout
from lightning_hangcheck.recorder.page.layout import PHASE_INDEX, UNKNOWN, fit_text

if TYPE_CHECKING:
    import mmap
    from collections.abc import Sequence
    from pathlib import Path

    from lightning_hangcheck.identity import Identity
    from lightning_hangcheck.model.beat import Ending, Membership, OpenSection, Training
    from lightning_hangcheck.model.naming.slugs import Phase

_pack_phase = layout.PHASE.form.pack_into
_PHASE_START = layout.PHASE.start
_EMPTY_SLOT = (0, UNKNOWN, UNKNOWN, 0, b"")


class PageWriter:
    """One page. A beat is written by `BeatWriter`, everything else here.

    Two threads may write different records at once; callers take turns at one record.

    Attributes:
        buffer: Its bytes: shared memory, or private ones that nobody reads.
        phase: The phase that it shows.
        ending: The ending that it shows.
    """

    def __init__(self, buffer: mmap.mmap | bytearray) -> None:
        self.buffer = buffer
        self.phase: Phase | None = None
        self.ending: Ending = "running"
        self._phase_index = UNKNOWN
        self._epoch = self._step = self._batch = UNKNOWN
        self._entries = 0
        self._saves = 0
        self._sections_ns = 0
        self._phase_stamp = 0
        self._step_stamp = 0
        self._timed = [0, 0, 0, 0]
        self._stamps: dict[str, int] = {}
        self._write_first()

    @classmethod
    def create(cls, path: Path) -> PageWriter:
        """Make the page of this process; it appears under its name only when it is whole.

        Raises:
            OSError: Shared memory is full or not ours.
        """
        temporary = name_beside(path)
        descriptor = os.open(temporary, os.O_RDWR | NEW_FILE, PRIVATE_FILE)
        try:
            writer = cls(reserve(descriptor, layout.PAGE_SIZE))
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        return writer

    @classmethod
    def unseen(cls) -> PageWriter:
        """A page that nobody reads, for a process that does not record."""
        return cls(bytearray(layout.PAGE_SIZE))

    @property
    def step(self) -> int | None:
        """The step that it shows."""
        return None if self._step == UNKNOWN else self._step

    def pulse(self) -> None:
        """Say that a Python thread of this process runs."""
        layout.PULSE.form.pack_into(self.buffer, layout.PULSE.start, monotonic_ns())

    def enter_phase(
        self,
        phase: Phase | None,
        epoch: int | None = None,
        step: int | None = None,
        batch: int | None = None,
        *,
        beats: bool = True,
    ) -> None:
        """Show where in its life the rank is; counts as progress. About 0.5 microseconds.

        What is no phase or no number of 64 bits is said once and ignored.

        Args:
            phase: None for none that has a name.
            epoch: None keeps the one shown; so do the others.
            step: Optimizer steps so far.
            batch: Index in the epoch.
            beats: Counts as a beat too; not where the rank says those itself.
        """
        if epoch is not None:
            self._epoch = epoch
        if step is not None:
            self._step = step
        if batch is not None:
            self._batch = batch
        try:
            self._phase_index = PHASE_INDEX[phase]
            self.phase = phase
            self._entries += beats
            self._write_phase()
        except (KeyError, TypeError, struct.error) as error:
            log.once("phase", f"enter_phase({phase!r}) was ignored: {error!r}")

    def show_phase(self, phase: Phase | None) -> None:
        """Show a phase that a section or checkpoint implies; it promises no further beats."""
        self._phase_index = PHASE_INDEX[phase]
        self.phase = phase
        self._write_phase()

    def introduce(self, me: Identity) -> None:
        """Say who this process is, as far as it knows."""
        self.identify(me.rank, me.world_size, me.local_rank, me.round, me.store_port)

    def identify(
        self,
        rank: int | None,
        world_size: int | None,
        local_rank: int | None,
        round_number: int | None = None,
        store_port: int | None = None,
    ) -> None:
        """Say which rank this is, in which round, and where the ranks' store is."""
        told = (rank, world_size, local_rank, round_number, store_port)
        numbers = (UNKNOWN if number is None else number for number in told)
        self._write("identity", layout.IDENTITY, *numbers)

    def announce(self, number: int | None) -> None:
        """Show which of the ranks that its parent starts this process is to be, if it was told."""
        self._write("announced", layout.ANNOUNCED, UNKNOWN if number is None else number)

    def mark_checkpoint(self, number: int, name: str, at_ns: int) -> None:
        """Show the last checkpoint passed; ``at_ns`` is nanoseconds since 1970."""
        text = fit_text(name, layout.CHECKPOINT_NAME_BYTES)
        self._write("checkpoint", layout.CHECKPOINT, monotonic_ns(), number, at_ns, text)

    def show_sections(self, sections: Sequence[OpenSection], *, advanced: bool = True) -> None:
        """Show the open sections, oldest first; of more than fit, the newest.

        Args:
            sections: All that are open.
            advanced: What changed shows that the rank gets on: a thread beside the one that trains
                may save or log for ever while that one is stuck.
        """
        if advanced:
            self._sections_ns = monotonic_ns()
        slots: list[int | bytes] = []
        for section in sections[-layout.SECTION_SLOTS :]:
            item = UNKNOWN if section.item is None else section.item
            limit_s = section.goes_on_after_s
            limit_ms = UNKNOWN if limit_s is None else round(limit_s * 1000)
            name = fit_text(section.name, layout.SECTION_NAME_BYTES)
            slots += (section.since_ns, item, limit_ms, section.in_main_thread, name)
        slots += _EMPTY_SLOT * (layout.SECTION_SLOTS - len(slots) // len(_EMPTY_SLOT))
        self._write("sections", layout.SECTIONS, self._sections_ns, len(sections), *slots)

    def mark_save(self, at_ns: int) -> int | None:
        """Count a save of a checkpoint that ended well, now and at the step shown.

        Args:
            at_ns: Nanoseconds since 1970.

        Returns:
            That step, None where none is shown.
        """
        self._saves += 1
        self._write("save", layout.SAVE, self._saves, at_ns, self._step)
        return self.step

    def mark_loaded(self, at_ns: int, step: int | None) -> None:
        """Show a checkpoint that training goes on from as the last one; it is no save.

        Args:
            at_ns: Nanoseconds since 1970.
            step: Optimizer steps that it holds; None where it does not tell.
        """
        self._write("save", layout.SAVE, self._saves, at_ns, UNKNOWN if step is None else step)

    def show_membership(self, membership: Membership) -> None:
        """Show whether the rank is in a process group."""
        index = layout.MEMBERSHIPS.index(membership)
        self._write("membership", layout.MEMBERSHIP, index)

    def show_training(self, training: Training) -> None:
        """Show in which thread the process trains, or that this is over."""
        self._write("training", layout.TRAINING, layout.TRAININGS.index(training))

    def time_step(self, loader_ns: int, forward_ns: int, rest_ns: int) -> None:
        """Add one step to the sums of their parts, as in `StepTimes`."""
        timed = self._timed
        timed[0] += 1
        timed[1] += loader_ns
        timed[2] += forward_ns
        timed[3] += rest_ns
        self._write_times()

    def end(self, ending: Ending, last_words: str = "") -> None:
        """Show how the process ended."""
        self.ending = ending
        text = fit_text(last_words, layout.LAST_WORDS_BYTES)
        self._write("ending", layout.ENDING, layout.ENDINGS.index(ending), monotonic_ns(), text)

    def _write_first(self) -> None:
        header = (layout.MAGIC, layout.LAYOUT_VERSION, layout.PAGE_SIZE, os.getpid())
        layout.HEADER.form.pack_into(self.buffer, 0, *header, monotonic_ns(), os.getppid())
        layout.BEAT.form.pack_into(self.buffer, layout.BEAT.start, 1, 0, 1)
        self.identify(None, None, None)
        self.announce(None)
        self.show_phase(None)
        self._write("checkpoint", layout.CHECKPOINT, 0, UNKNOWN, 0, b"")
        self.show_sections(())
        self._write("save", layout.SAVE, 0, 0, UNKNOWN)
        self.show_membership("none")
        self.show_training("main")
        self._write_times()
        self.end("running")

    def _write_phase(self) -> None:
        self._phase_stamp = stamp = self._phase_stamp + 1
        _pack_phase(
            self.buffer,
            _PHASE_START,
            stamp,
            monotonic_ns(),
            self._phase_index,
            self._epoch,
            self._step,
            self._batch,
            self._entries,
            stamp,
        )

    def _write_times(self) -> None:
        self._step_stamp = stamp = self._step_stamp + 1
        record = layout.STEP_TIMES
        record.form.pack_into(self.buffer, record.start, stamp, *self._timed, stamp)

    def _write(self, name: str, record: layout.Record, *fields: int | bytes) -> None:
        self._stamps[name] = stamp = self._stamps.get(name, 0) + 1
        record.form.pack_into(self.buffer, record.start, stamp, *fields, stamp)
