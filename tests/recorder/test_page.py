"""The page: what is written is what is read, or nothing is; and how training ends on it."""

from __future__ import annotations

import os
import random
import stat
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some
from processes import PROGRAMS, until
from recorded_run import beat_on

from lightning_hangcheck.identity import Identity
from lightning_hangcheck.model.beat import Beat, CheckpointMark, OpenSection, SaveMark, StepTimes
from lightning_hangcheck.model.words import PHASES
from lightning_hangcheck.recorder import page as layout
from lightning_hangcheck.recorder.page import BeatWriter, Call, OpenedSection, PageWriter
from lightning_hangcheck.recorder.page_reader import PageReader, PageUnreadable, read_page

if TYPE_CHECKING:
    from pathlib import Path

    from processes import StartProgram

    from lightning_hangcheck.model.slugs import Phase


counts = some.integers(0, 2**62)


def no_start() -> None:
    raise AssertionError("a writer that has a page does not start another")


def test_the_most_that_is_shown_fits_into_one_place() -> None:
    page, wide, most = PageWriter.unseen(), "\N{GRINNING FACE}" * 1000, 2**63 - 1
    before = bytearray(page.buffer)
    page.identify(Identity(rank=most, world_size=most, local_rank=most, round=most))
    page.mark_checkpoint(most, wide, most)
    page.show_sections([OpenedSection(wide, most - at, most, 1.5, False) for at in range(20)])
    page.mark_save(most)
    page.time_step(most, most, most)
    page.show(announced=most)
    frames = [Call("f" * 90, wide, 9)] + [Call("f" * 90, "g" * 90, 9)] * 20
    page.show_wait(tuple(range(1, 65)), frames, wide)
    page.end("finished", wide)
    page.end("raised", wide)
    _, second = layout.PLACES
    changed = [at for at, byte in enumerate(before) if page.buffer[at] != byte]
    assert max(at for at in changed if at < second) < second - 64
    assert max(changed) < layout.PAGE_SIZE - 64
    shown = [most - section.since_ns for section in read_page(page.buffer).sections]
    assert shown == list(range(12, 20)), "the newest"


@given(
    phase=some.sampled_from([None, *PHASES]),
    epoch=some.none() | counts,
    step=some.none() | counts,
    batch=some.none() | counts,
    beats=some.integers(0, 5),
)
def test_a_page_reads_as_it_was_written(
    phase: Phase | None, epoch: int | None, step: int | None, batch: int | None, beats: int
) -> None:
    page = PageWriter.unseen()
    writer = BeatWriter(no_start)
    writer.attach(page.buffer)
    me = Identity(rank=3, world_size=8, local_rank=1, round=2, store_port=29500)
    page.identify(me)
    page.show(announced=1)
    page.show(membership="left")
    page.enter_phase(phase, epoch, step, batch)
    page.mark_checkpoint(7, "Model created", 1_700_000_000_123_456_789)
    page.show_sections([OpenedSection("Trainer", 5), OpenedSection("fit", 6, 3, 1.5, False)])
    assert page.mark_save(1_700_000_000_000_000_000) == step
    assert page.mark_save(1_700_000_001_000_000_000) == step
    saved = read_page(page.buffer).save
    page.mark_loaded(1_700_000_000_000_000_000, 40)
    loaded = read_page(page.buffer).save
    page.time_step(100_000_000, 200_000_000, 300_000_000)
    page.time_step(100_000_000, 150_000_000, 200_000_000)
    page.end("raised", "ValueError: no")
    for _ in range(beats):
        writer.beat()
    read = read_page(page.buffer)
    assert (read.pid, read.rank, read.world_size, read.local_rank) == (os.getpid(), 3, 8, 1)
    assert (read.round, read.store_port) == (2, 29500)
    assert (read.parent_pid, read.announced, read.membership) == (os.getppid(), 1, "left")
    assert (read.phase, read.epoch, read.step, read.batch) == (phase, epoch, step, batch)
    assert read.checkpoint == CheckpointMark(7, "Model created", "2023-11-14T22:13:20.123456Z")
    assert read.sections == (OpenSection("Trainer", 5), OpenSection("fit", 6, 3, 1.5, False))
    assert read.main_sections == (OpenSection("Trainer", 5),)
    assert saved == SaveMark(2, "2023-11-14T22:13:21.000000Z", step)
    assert read.save == loaded == SaveMark(2, "2023-11-14T22:13:20.000000Z", 40)
    assert (read.ending, read.last_words) == ("raised", "ValueError: no")
    assert read.step_times == StepTimes(2, 0.2, 0.35, 0.5)
    assert read.beats == beats + 1
    assert read.last_beat_ns > 0


@given(some.integers(0, 4000))
def test_a_writer_that_died_in_all_else_leaves_what_it_showed_before(cut: int) -> None:
    """It is written in two places in turns, and only then said to be there."""
    page = PageWriter.unseen()
    page.mark_save(10**18)
    old = bytearray(page.buffer)
    page.end("raised", "ValueError" * 30)
    torn, start = bytearray(old), min(layout.PLACES)
    for place in layout.PLACES:
        torn[place : place + cut] = page.buffer[place : place + cut]
    assert start + cut < layout.PAGE_SIZE
    read = read_page(torn)
    assert (read.save, read.ending) == (read_page(old).save, "running")
    assert read.save is not None


class RacingMemory:
    """A page whose writer goes on between any two words of a reader's copy."""

    def __init__(self, record: layout.Record, states: list[bytes], steps: list[int]) -> None:
        self.data = bytearray(PageWriter.unseen().buffer)
        self.data[record.start : record.stop] = states[0]
        self._steps = iter(steps)
        words = range(0, record.stop - record.start, 8)
        # as CPython packs: clear the record, then store it, both in ascending order
        self._stores = iter(
            (record.start + at, bytes(8) if clearing else state[at : at + 8])
            for state in states[1:]
            for clearing in (True, False)
            for at in words
        )

    def __getitem__(self, part: slice) -> bytes:
        copy = b""
        for at in range(part.start, part.stop, 8):
            for _ in range(next(self._steps, 0)):
                place, word = next(
                    self._stores, (part.start, self.data[part.start : part.start + 8])
                )
                self.data[place : place + 8] = word
            copy += self.data[at : min(at + 8, part.stop)]
        return copy


@given(some.lists(some.integers(0, 7), max_size=60), some.integers(2, 6))
def test_a_reader_never_mixes_two_sums_of_step_times(steps: list[int], writes: int) -> None:
    second = 1_000_000_000
    states = [
        layout.STEPS.form.pack(number, number, *[number * second] * 3, number)
        for number in range(1, writes + 1)
    ]
    words_before = [0] * (layout.STEPS.start // 8)
    memory = RacingMemory(layout.STEPS, states, words_before + steps)
    try:
        read = read_page(memory).step_times
    except PageUnreadable:
        return
    assert read is None or {*read.parts} == {read.steps}, "None while it is cleared"


def test_a_loop_that_goes_on_says_so_once_between_two_pulses() -> None:
    page = PageWriter.unseen()

    def tells() -> bool:
        before = read_page(page.buffer).last_beat_ns
        page.go_on()
        return read_page(page.buffer).last_beat_ns > before

    assert [tells(), tells()] == [True, True], "no pulse is there to end a silence"
    page.pulse()
    assert [tells(), tells()] == [True, False]
    page.pulse()
    assert [tells(), tells()] == [True, False]


@given(some.integers(0), some.booleans())
def test_no_bytes_make_a_reader_raise_anything_else(seed: int, stamped: bool) -> None:
    page = bytearray(random.Random(seed).randbytes(layout.PAGE_SIZE))
    layout.HEADER.form.pack_into(page, 0, layout.MAGIC, layout.LAYOUT_VERSION, 4096, 1, 1, 1)
    for record in (layout.STEPS, layout.CHECKPOINT) if stamped else ():
        page[record.start : record.start + 8] = page[record.stop - 8 : record.stop] = b"\1" * 8
    layout.REST.form.pack_into(page, layout.REST.start, seed % 2**63)
    try:
        assert isinstance(read_page(page), Beat)
    except PageUnreadable:
        return


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"short", "5 bytes"),
        (b"\0" * layout.PAGE_SIZE, "no page"),
        (
            layout.HEADER.form.pack(layout.MAGIC, 99, layout.PAGE_SIZE, 1, 1, 1).ljust(8192),
            "version 99",
        ),
    ],
)
def test_a_file_that_is_no_page_of_ours_is_a_gap(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "17.page"
    path.write_bytes(data)
    read = PageReader(path).read()
    assert read.what == "page of pid 17"
    assert why in read.why


def test_a_fifo_in_place_of_a_page_and_one_that_somebody_cuts_off_are_gaps(tmp_path: Path) -> None:
    """A reader that maps it would be ended by the kernel."""
    os.mkfifo(tmp_path / "16.page")
    fifo = PageReader(tmp_path / "16.page").read()
    path = tmp_path / "17.page"
    PageWriter.create(path)
    reader = PageReader(path)
    assert isinstance(reader.read(), Beat)
    os.truncate(path, 0)
    cut = reader.read()
    reader.close()
    assert ("it is a FIFO" in fifo.why, "0 bytes" in cut.why) == (True, True)


def test_a_reader_sees_what_was_written_since_it_last_read(tmp_path: Path) -> None:
    path = tmp_path / "17.page"
    reader = PageReader(path)
    missing = reader.read()
    assert "No such file" in missing.why
    page = PageWriter.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]

    at = "2001-09-09T01:46:40.000000Z"
    page.mark_checkpoint(1, "one", 10**18)
    assert reader.read().checkpoint == reader.read().checkpoint == CheckpointMark(1, "one", at)
    page.mark_checkpoint(2, "one", 10**18)
    page.enter_phase("backward", step=4)
    page.pulse()
    seen = reader.read()
    assert (seen.checkpoint, seen.phase, seen.step) == (CheckpointMark(2, "one", at), "backward", 4)
    assert seen.pulse_ns > 0
    reader.close()


def test_a_beat_asks_the_clock_and_calls_nothing_else() -> None:
    """No lock, no system call: a store for the count and one for the moment."""
    page, writer, called = PageWriter.unseen(), BeatWriter(no_start), list[str]()
    writer.attach(page.buffer)
    beat = writer.beat

    def note(_: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            called.append(getattr(argument, "__name__", event))

    sys.setprofile(note)
    beat()
    sys.setprofile(None)
    assert called == ["call", "monotonic_ns", "setprofile"]
    assert read_page(page.buffer).beats == 1


ACTOR = PROGRAMS / "site-packages" / "serving_actor.py"


@pytest.mark.real
@pytest.mark.parametrize(
    ("function", "ending", "words"),
    [
        ("return_well", "finished", ""),
        ("raise_within", "raised", "an exception that left raise_within ("),
    ],
)
def test_the_end_of_the_training_is_told_while_its_process_goes_on(
    function: str, ending: str, words: str, program: StartProgram, tmp_path: Path
) -> None:
    running = program(
        ACTOR, "training_in_thread", function, HANGCHECK_RUN_DIR=str(tmp_path / "run")
    )
    page = tmp_path / running.first_words / "pages" / f"{running.pid}.page"
    assert beat_on(page).training == "beside"
    running.tell("")
    told = until(lambda: (beat := beat_on(page)).training == "over" and beat, "its end")
    assert told.ending == ending
    assert words in told.last_words
    assert running.process.poll() is None
