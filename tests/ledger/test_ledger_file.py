"""The ledger: what is written, read again, and spent."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger.lines import begun, ended, run

from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import WHOLE_BYTES, difference, fingerprint
from lightning_hangcheck.ledger.spending import Spending, Stalls, read_prices
from lightning_hangcheck.model.beat import Beat, SaveMark
from lightning_hangcheck.model.case import PhaseTime
from lightning_hangcheck.model.verdict import Verdict

LINES = (begun("a", "prepare"), ended("a", val_acc=0.9), run("r1"))


@given(cut=st.integers(0, 5000), count=st.integers(1, 3))
def test_a_writer_that_is_killed_at_any_byte_loses_no_other_line(cut: int, count: int) -> None:
    """A write that was cut short leaves a beginning of its line; nothing before or after it.

    One that lacks its newline alone is no beginning: all of it is there, and it is read.
    """
    whole = [msgspec.json.encode(line) + b"\n" for line in LINES]
    before, torn = b"".join(whole[:count]), whole[0][: cut % len(whole[0].rstrip())]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.jsonl")
        ledger.write_bytes(before + torn)
        assert ledger_file.read(ledger).lines == LINES[:count]
        ledger_file.append(ledger, LINES[2])
        after = ledger_file.read(ledger)
    assert after.lines[:count] == LINES[:count]
    assert after.lines[-1] == LINES[2]
    assert len(after.lines) + after.unreadable == count + 1 + (len(torn) > 0)


def test_the_ledger_is_for_its_owner_alone(tmp_path: Path) -> None:
    ledger = ledger_file.find_ledger(str(tmp_path / "hangcheck_runs" / "ledger.jsonl"))
    ledger_file.append(ledger, LINES[0])
    assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
    assert stat.S_IMODE(ledger.parent.stat().st_mode) == 0o700


def test_a_folder_that_somebody_named_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    ledger_file.append(tmp_path / "mine.jsonl", LINES[0])
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "ledger.jsonl").symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        ledger_file.append(tmp_path / "ledger.jsonl", LINES[0])
    assert target.read_text() == "kept"


def test_lines_of_a_newer_version_are_counted_and_skipped(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b'{"kind":"dream","id":"1","at":""}\n\xff\xfe\n')
    ledger_file.append(ledger, LINES[0])
    pages = ledger_file.read(ledger)
    assert (pages.lines, pages.unreadable) == (LINES[:1], 2)


def test_a_line_of_an_older_version_without_later_fields_is_read(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b'{"kind":"end","id":"a","at":"","duration_s":2}\n')
    assert ledger_file.read(ledger).lines[0].id == "a"


def test_a_ledger_that_is_none_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableRun, match="it is a FIFO"):
        ledger_file.read(tmp_path / "pipe")
    with pytest.raises(UnreadableRun, match="there is no ledger"):
        ledger_file.read(tmp_path / "nothing")


def test_content_tells_and_time_does_not(tmp_path: Path) -> None:
    file = tmp_path / "data.csv"
    file.write_text("1,2\n")
    before = fingerprint(str(file))
    os.utime(file, (1, 1))
    assert difference(before, fingerprint(str(file))) == ""
    file.write_text("1,3\n")
    assert difference(before, fingerprint(str(file))).endswith("(known by its whole content)")


def test_a_large_file_is_told_by_its_ends_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    with file.open("wb") as sparse:
        sparse.truncate(WHOLE_BYTES + 1)
    before = fingerprint(str(file))
    assert before.how == "size, time, first and last MiB"
    with file.open("r+b") as sparse:
        sparse.seek(WHOLE_BYTES)
        sparse.write(b"1")
    assert "has changed" in difference(before, fingerprint(str(file)))


def test_a_folder_changes_with_any_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a").write_text("1")
    before = fingerprint(str(tmp_path))
    assert before.how == "names, sizes and times of 1 files"
    assert difference(before, fingerprint(str(tmp_path))) == ""
    (tmp_path / "inner" / "b").write_text("2")
    assert "has changed: 1 bytes then, 2 now" in difference(before, fingerprint(str(tmp_path)))


def test_what_cannot_be_looked_at_says_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert fingerprint(str(tmp_path / "none")).how == "it is not there"
    assert fingerprint(str(tmp_path / "pipe")).how.startswith("not looked at")
    remote = fingerprint("s3://bucket/data")
    assert (
        difference(remote, remote)
        == "s3://bucket/data cannot be compared (not looked at: it is remote)"
    )


def test_a_name_that_no_file_can_have_and_a_folder_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint("a\0b").how.startswith("not read: ")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert fingerprint("raw.txt").how == "it is not there"


SECOND = 1_000_000_000


def read(
    spending: Spending, at_s: float, phase: str, step: int, save: SaveMark | None = None
) -> None:
    beat = Beat(pid=1, phase=phase, step=step, save=save)  # type: ignore[arg-type]
    spending.read(beat, int(at_s * SECOND))


def test_time_goes_to_the_phase_that_a_rank_shows() -> None:
    spending = Spending()
    for at_s, phase in ((0, "dataloading"), (1, "dataloading"), (4, "backward"), (6, "backward")):
        read(spending, at_s, phase, 0)
    assert spending.spent().phases == (PhaseTime("backward", 5.0), PhaseTime("dataloading", 1.0))


def test_only_saves_that_the_rank_counts_are_saves() -> None:
    spending = Spending()
    read(spending, 0, "checkpoint_save", 10)
    read(spending, 1, "training_step", 10, SaveMark(0, "loaded", 10))
    assert spending.spent().saves == 0
    read(spending, 3, "training_step", 14, SaveMark(2, "at 2", 11))
    assert spending.spent().saves == 2


def test_work_is_unsaved_from_the_first_step_and_then_from_each_save() -> None:
    spending = Spending()
    spending.read(Beat(pid=1), 0)
    assert spending.spent().unsaved_s is None
    read(spending, 5, "training_step", 1)
    read(spending, 9, "training_step", 8)
    assert spending.spent().unsaved_s == 4.0
    for at_s, step in ((10, 9), (12, 12)):
        read(spending, at_s, "training_step", step, SaveMark(1, "at 9", 9))
    assert spending.spent().unsaved_s == 2.0


def test_what_was_saved_before_anybody_looked_was_saved_at_an_unknown_moment() -> None:
    spending = Spending()
    for at_s in (5, 9):
        read(spending, at_s, "training_step", at_s, SaveMark(1, "at 2", 2))
    assert spending.spent().unsaved_s is None


def test_epochs_are_measured_from_one_change_of_their_number_to_another() -> None:
    spending = Spending()
    for at_s, epoch, step in (
        (0, 0, 0),
        (4, 0, 2),
        (10, 1, 5),
        (30, 2, 15),
        (50, 3, 25),
        (55, 3, 25),
    ):
        spending.read(Beat(pid=1, epoch=epoch, step=step), at_s * SECOND)
    spent = spending.spent()
    assert (spent.epoch_s, spent.training_s, spent.steps) == (20.0, 50.0, 25)


def test_steps_of_a_checkpoint_that_is_loaded_were_not_made_here() -> None:
    spending, loaded = Spending(), SaveMark(0, "at 2", 1000)
    for at_s, step, save in ((0, 0, None), (2, 0, loaded), (3, 1000, loaded), (13, 1020, loaded)):
        spending.read(Beat(pid=1, step=step, save=save), at_s * SECOND)
    assert (spending.spent().steps, spending.spent().training_s) == (20, 10.0)


def test_an_epoch_that_was_not_seen_whole_has_no_duration() -> None:
    spending = Spending()
    for at_s, epoch in ((0, 3), (5, 3), (10, 4), (30, 0), (31, 0)):
        spending.read(Beat(pid=1, epoch=epoch), at_s * SECOND)
    assert spending.spent().epoch_s is None, "another training began"


def verdict(kind: str, stalled_for_s: float, cause: str | None = "file_lock") -> Verdict:
    return Verdict(
        verdict=kind,  # type: ignore[arg-type]
        run_id="r",
        command="c",
        started_at="2026-11-20T10:00:00Z",
        detected_at="2026-11-20T10:00:00Z",
        stalled_for_s=stalled_for_s,
        world_size=4,
        cause=cause,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("told", "ended_s", "stall"),
    [
        # one that passes costs what it lasted on every rank
        ([("suspect", 5, 0), ("hang", 30, 25), ("recovered", 900, 895)], 2000, ("hang", 900)),
        # one that stands lasts to the end
        ([("hang", 30, 100)], 150, ("hang", 80)),
        # its aftermath is no other stall, and not its beginning
        ([("hang", 30, 100), ("hang", 30, 200)], 210, ("hang", 140)),
        # the end of a round ends it
        ([("dead", 10, 100), ("crashed", 0, 105)], 900, ("dead", 15)),
    ],
)
def test_a_stall_lasts_from_its_silence_to_what_ends_it(
    told: list[tuple[str, int, int]], ended_s: int, stall: tuple[str, int]
) -> None:
    stalls = Stalls()
    for kind, stalled_for_s, at_s in told:
        stalls.take(verdict(kind, stalled_for_s), at_s * SECOND)
    (found,) = stalls.ended(ended_s * SECOND)
    assert (found.verdict, found.seconds) == stall
    assert (found.rank_hours, found.explained) == (
        pytest.approx(stall[1] * 4 / 3600, abs=1e-6),
        True,
    )


def test_a_stall_of_unknown_cause_is_not_explained() -> None:
    stalls = Stalls()
    stalls.take(verdict("hang", 30, "unknown"), 100 * SECOND)
    assert [one.explained for one in stalls.ended(150 * SECOND)] == [False]


def test_the_price_of_a_model_comes_before_that_of_all_others() -> None:
    prices = read_prices(["0.89/h", "a100=1.89/h, H100=2.99"])
    assert prices.cost(["NVIDIA A100-SXM4-80GB"], 2, 1800) == pytest.approx(1.89)
    assert prices.cost(["NVIDIA H100"], 1, 3600) == pytest.approx(2.99)
    assert prices.cost([], 1, 3600) == pytest.approx(0.89)


def test_without_a_price_nothing_is_made_up() -> None:
    assert read_prices(["A100=1.89/h"]).cost(["NVIDIA L4"], 1, 3600) is None
    assert read_prices([""]).cost([], 1, 3600) is None


@pytest.mark.parametrize("text", ["cheap", "-1/h", "nan", "=0.5", "A100=", "0.5/d"])
def test_what_is_no_price_is_one_sentence(text: str) -> None:
    with pytest.raises(BadUsage, match="is not a price per hour; write for example"):
        read_prices([text])
