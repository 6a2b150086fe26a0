"""The ledger: its lines and fingerprints, and whether a phase may be reused."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger.lines import HERE, begun, discarded, ended, file, history, run
from msgspec.structs import replace
from report.constructed import verdict as constructed

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.ledger_file import Fingerprint, PastPhase, difference, fingerprint
from lightning_hangcheck.ledger.phase_reuse import Decision, IfDone, decide
from lightning_hangcheck.ledger.spending import Spending, Stalls
from lightning_hangcheck.machine import read_process_stat
from lightning_hangcheck.model.beat import Beat, SaveMark
from lightning_hangcheck.model.case import PhaseTime

if TYPE_CHECKING:
    from lightning_hangcheck.model.verdict import Verdict

LINES = (begun("a", "prepare"), ended("a", val_acc=0.9), run("r1"))


@given(cut=st.integers(0, 5000), count=st.integers(1, 3))
def test_a_writer_that_is_killed_at_any_byte_loses_no_other_line(cut: int, count: int) -> None:
    """A write that was cut short leaves a beginning of its line; nothing before or after it.

    One that lacks its newline alone is no beginning: all of it is there, and it is read.
    """
    whole = [msgspec.json.encode(line) + b"\n" for line in LINES]
    written, torn = b"".join(whole[:count]), whole[0][: cut % len(whole[0].rstrip())]
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder, "ledger.jsonl")
        ledger.write_bytes(written + torn)
        before = ledger_file.read(ledger)
        ledger_file.append(ledger, LINES[2])
        after = ledger_file.read(ledger)
    assert [(phase.name, phase.ended) for phase in after.phases] == [("prepare", count > 1)]
    assert before.phases == after.phases
    assert after.runs == (*before.runs, LINES[2])
    assert (len(after.runs), after.unreadable) == (1 + count // 3, len(torn) > 0)


def test_the_ledger_is_for_its_owner_alone_and_a_folder_that_somebody_named_as_it_was(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o755)
    ledger = ledger_file.find_ledger(str(tmp_path / "hangcheck_runs" / "ledger.jsonl"))
    for one in (ledger, tmp_path / "mine.jsonl"):
        ledger_file.append(one, LINES[2])
    modes = [stat.S_IMODE(one.stat().st_mode) for one in (ledger, ledger.parent, tmp_path)]
    assert modes == [0o600, 0o700, 0o755]
    (tmp_path / "hangcheck_runs").rename(tmp_path / "elsewhere")
    (tmp_path / "hangcheck_runs").symlink_to("elsewhere")  # as to a larger disk
    ledger_file.append(ledger, LINES[2])
    assert len(ledger_file.read(ledger).runs) == 2


def test_lines_of_newer_versions_are_counted_and_of_older_ones_read(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    older = b'{"kind":"phase","id":"a","at":"","name":"train","duration_s":2}\n'
    ledger.write_bytes(b'{"kind":"dream","id":"1","at":""}\n\xff\xfe\n' + older)
    told = ledger_file.read(ledger)
    assert ([phase.name for phase in told.phases], told.unreadable) == (["train"], 2)


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


def test_a_folder_is_known_by_all_of_its_files_or_not_at_all(tmp_path: Path) -> None:
    inner = tmp_path / "shards" / "inner"
    inner.mkdir(parents=True)
    for number in range(3000):
        (inner / f"shard-{number:05}-{'x' * 200}").touch()
    began = time.process_time()
    before = fingerprint(str(tmp_path / "shards"))
    assert time.process_time() - began < 1.0, "once more than twice as many bytes took four times"
    (inner / "one more").touch()
    assert "has changed" in difference(before, fingerprint(str(tmp_path / "shards")))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        Path(folder, "others").mkdir(0o000)
        me = os.geteuid()
        os.seteuid(me or NOBODY)  # root may list any folder
        try:
            found = fingerprint(folder)
        finally:
            os.seteuid(me)
    assert (found.digest, found.how) == ("", "not read: Permission denied")


NOBODY = 65_534
SECOND = 1_000_000_000


LOADED, SAVED = SaveMark(0, "at 2", 1000), SaveMark(1, "at 9", 9)


def beats(phase: str | None, *steps: tuple[int, int, SaveMark | None]) -> list[tuple[int, Beat]]:
    """At which second a rank was at which step, and how it had saved."""
    return [(at, Beat(pid=1, phase=phase, step=step, save=mark)) for at, step, mark in steps]  # type: ignore[arg-type]


def epochs(*seen: tuple[int, int, int]) -> list[tuple[int, Beat]]:
    """At which second a rank was in which epoch, at which step."""
    return [(at, Beat(pid=1, epoch=epoch, step=step)) for at, epoch, step in seen]


SPENT = {
    "time goes to the phase that a rank shows": (
        [
            *beats("dataloading", (0, 0, None), (1, 0, None)),
            *beats("backward", (4, 0, None), (6, 0, None)),
        ],
        {"phases": (PhaseTime("backward", 5.0), PhaseTime("dataloading", 1.0))},
    ),
    "a restart loses the steps since the last save": (
        beats("training_step", (0, 10, None), (3, 14, SaveMark(2, "at 2", 11))),
        {"saves": 2},
    ),
    "steps that a loaded checkpoint holds are not lost": (
        beats("training_step", (3, 1004, LOADED)),
        {"saves": 0},
    ),
    "nor were they made here": (
        beats(None, (0, 0, None), (2, 0, LOADED), (3, 1000, LOADED), (13, 1020, LOADED)),
        {"steps": 20, "training_s": 10.0},
    ),
    "work is unsaved from the first step": (
        [(0, Beat(pid=1)), *beats("training_step", (5, 1, None), (9, 8, None))],
        {"unsaved_s": 4.0},
    ),
    "and then from each save": (
        beats("training_step", (5, 1, None), (10, 9, SAVED), (12, 12, SAVED)),
        {"unsaved_s": 2.0},
    ),
    "an epoch lasts from one change of its number to another": (
        epochs((0, 0, 0), (4, 0, 2), (10, 1, 5), (30, 2, 15), (50, 3, 25), (55, 3, 25)),
        {"epoch_s": 20.0, "training_s": 50.0, "steps": 25},
    ),
}


@pytest.mark.parametrize("name", SPENT)
def test_what_a_rank_spends_is_read_from_its_beats(name: str) -> None:
    seen, expected = SPENT[name]
    spending = Spending()
    for at_s, beat in seen:
        spending.read(beat, at_s * SECOND)
    spent = spending.spent()
    assert {field: getattr(spent, field) for field in expected} == expected


def verdict(kind: str, stalled_for_s: float, cause: str | None = "file_lock") -> Verdict:
    return constructed(kind, stalled_for_s=stalled_for_s, world_size=4, cause=cause)


@pytest.mark.parametrize(
    ("told", "ended_s", "stall"),
    [
        # one that passes costs what it lasted on every rank
        ([("suspect", 5, 0), ("hang", 30, 25), ("recovered", 900, 895)], 2000, ("hang", 900)),
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


# What the lines of a ledger tell together, and whether a phase must run again.


@pytest.mark.parametrize(
    ("host", "ticks", "status"),
    [("", 0, "running"), ("", -1, "interrupted"), ("another", 0, "unknown")],
)
def test_a_phase_without_an_end_is_told_by_its_process(host: str, ticks: int, status: str) -> None:
    """A process is known by its id and its start."""
    stat = read_process_stat(os.getpid())
    host, ticks = host or os.uname().nodename, stat.started_ticks + ticks
    place = replace(HERE, host=host, pid=os.getpid(), started_ticks=ticks)
    measured = PastPhase(id="a", at="", duration_s=7.0, metrics={"loss": 2.0})
    (phase,) = history(begun("a", "train", place=place), measured).phases
    assert (phase.status, phase.duration_s, phase.metrics) == (status, 7.0, {"loss": 2.0})


def test_what_failed_or_was_discarded_does_not_count() -> None:
    told = history(
        begun("a", "train"), ended("a"), discarded("a", "it was run again"),
        begun("b", "train"), ended("b", error="ValueError: no"),
    )  # fmt: skip
    assert [phase.counts for phase in told.phases] == [False, False]
    assert told.last_done("train") is None


def test_what_rests_on_a_phase_is_found_at_any_remove_and_within_folders() -> None:
    told = history(
        begun("a", "prepare"), ended("a", file("/data")),
        begun("b", "train", file("/data/train.bin")), ended("b", file("/last.ckpt")),
        begun("c", "evaluate", file("/last.ckpt")), ended("c", accuracy=0.9),
        begun("d", "other", file("/elsewhere")), ended("d"),
    )  # fmt: skip
    assert [phase.name for phase in told.resting_on(told.phases[0])] == ["train", "evaluate"]


DATA, MADE = file("/data"), file("/last.ckpt")


def decided(if_done: IfDone, *present: Fingerprint, **metrics: float) -> Decision:
    """Of a phase that was run with DATA and made MADE, where these files are present now."""
    told = history(
        begun("a", "train", DATA), ended("a", MADE, **metrics),
        begun("b", "evaluate", MADE), ended("b", duration_s=600.0, accuracy=0.8),
    )  # fmt: skip
    files = {one.path: one for one in present or (DATA, MADE)}
    gone = Fingerprint(path="", how="it is not there")
    return decide(told, "train", if_done, None, look=lambda path: files.get(path, gone))


OTHER, LARGER = file("/data", "2"), file("/data", "22")


@pytest.mark.parametrize(
    ("if_done", "present", "metrics", "act", "why"),
    [
        ("ask", (), {"val_acc": 0.85}, "reuse", ""),
        ("ask", (), {"val_acc": 0.8499}, "ask", ""),
        ("ask", (), {}, "ask", "no metric says how well"),
        # changed files are asked about however good the metric was
        ("ask", (LARGER, MADE), {"val_acc": 0.99}, "ask", "/data has changed: 1 bytes then, 2 now"),
        ("reuse", (), {}, "reuse", ""),
        ("reuse", (OTHER, MADE), {}, "run", "/data has changed (known by its whole content)"),
        ("reuse", (DATA,), {}, "run", "/last.ckpt cannot be compared (it is not there)"),
    ],
)
def test_a_phase_is_reused_only_where_all_is_as_it_was_and_went_well(
    if_done: IfDone, present: tuple[Fingerprint, ...], metrics: dict[str, float], act: str, why: str
) -> None:
    decision = decided(if_done, *present, **metrics)
    assert (decision.act, why in decision.why) == (act, True)


def test_what_must_not_run_twice_is_refused_unless_something_changed() -> None:
    assert decided("error").act == "refuse"
    assert decided("error", OTHER, MADE).act == "run"
    assert decide(history(begun("a", "train")), "train", "error").act == "run"
