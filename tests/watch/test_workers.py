"""What the sidecar does beside watching, and in which order evidence and word leave it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import pytest
from cases import IN_BARRIER, IN_LOAD, job, rank
from processes import PATIENCE_S, ending, until
from watch.launched import run, start_run, verdict_of

from lightning_hangcheck.judge import judge
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.model.verdict import Verdict
from lightning_hangcheck.observe.watched_rank import Faults
from lightning_hangcheck.recorder.journal_writer import encode_entry
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.watch import writer as writing
from lightning_hangcheck.watch.link import HangProven
from lightning_hangcheck.watch.roster import PATIENCE_NS, StartStates
from lightning_hangcheck.watch.workers import Metronome
from lightning_hangcheck.watch.writer import NewestOnly, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SECOND = 1_000_000_000


def test_a_starved_sidecar_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    starvation = Metronome(0)
    starvation.beat(7 * SECOND)
    assert starvation.read(7 * SECOND) == 7 * SECOND
    (gap,) = starvation.gaps
    assert gap.what == "7 s of the job"
    assert "overloaded machine" in gap.why
    assert "overloaded machine" in capfd.readouterr().err


def test_what_fails_is_a_gap_of_its_rank_said_once_and_what_comes_after_goes_on(
    capfd: pytest.CaptureFixture[str],
) -> None:
    faults, seen = Faults(), []
    for number in (0, 1, 1):
        with faults.of("what it does", number):
            seen.append(1 // number)
    with faults.of("a verdict"):
        raise KeyError("x")
    with faults.of("a verdict"):
        raise ValueError("y")
    assert seen == [1, 1]
    told = [(gap.what, gap.rank) for gap in faults.gaps]
    assert told == [("what it does", 0), ("a verdict", None)]
    assert "ZeroDivisionError" in faults.gaps[0].why
    assert "ValueError: y" in faults.gaps[1].why
    assert capfd.readouterr().err.count("the watch goes on") == 2
    with pytest.raises(KeyboardInterrupt), faults.of("a verdict"):
        raise KeyboardInterrupt


PIDS = {0: 100, 1: 101}
NOW = 10**15


def line(pid: int, kind: str = "state", **facts: object) -> bytes:
    return encode_entry(kind, {"facts": facts}, pid)


def test_how_ranks_began_is_shown_once_all_have_spoken() -> None:
    states = StartStates()
    states.take(
        line(100, "said") + line(100, versions=3) + b'{"kind":"state"}\n{"kind":"state","to'
    )
    assert states.news({0: 100}, NOW) is None
    states.take(line(100, versions="python 3.11"))
    assert states.news(PIDS, NOW) is None
    states.take(line(101, versions="python 3.12"))
    shown = states.news(PIDS, NOW)
    assert shown is not None
    assert "versions: python 3.11 (rank 0); python 3.12 (rank 1)" in shown
    assert states.news(PIDS, NOW + PATIENCE_NS) is None


def test_what_is_offloaded_is_kept_once_for_the_ledger() -> None:
    states = StartStates()
    for pid in PIDS.values():
        states.take(encode_entry("offloaded", {"what": "parts on cpu"}, pid))
    assert list(states.offloaded) == ["parts on cpu"]


STALLS = """
import time
from pathlib import Path
import lightning_hangcheck as hc
told = next(Path("hangcheck_runs").iterdir()) / "verdicts"
hc.beat()
while not (told / "1.json").exists():
    time.sleep(0.05)
while not (told / "2.json").exists():
    hc.beat()
    time.sleep(0.05)
"""
"""Stands still until that is told, and goes on until that is told, too."""


def watched(folder: Path, code: str, *options: str, **environment: str) -> int:
    command = [sys.executable, "-m", "lightning_hangcheck", "run", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=folder, capture_output=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "HANGCHECK_SUSPECT_OUTSIDE_AFTER": "4", **environment},
    )  # fmt: skip
    return done.returncode


@pytest.mark.real
def test_a_run_is_kept_with_its_stalls_and_what_they_cost(tmp_path: Path) -> None:
    assert watched(tmp_path, STALLS) == 0
    (line,) = ledger_file.read(tmp_path / "hangcheck_runs" / "ledger.jsonl").runs
    assert (line.verdict, line.exit_code, line.ranks) == ("finished", 0, 1)
    (stall,) = line.stalls
    assert stall.verdict == "suspect"
    assert 4 <= stall.seconds <= line.duration_s
    assert stall.rank_hours == pytest.approx(stall.seconds / 3600, abs=1e-6)


@pytest.mark.parametrize("inside", [(), ("hangcheck",)], ids=["in front", "behind"])
def test_hangcheck_in_front_of_srun_says_the_way_out(tmp_path: Path, inside: tuple[str]) -> None:
    (tmp_path / "srun").symlink_to("/bin/true")
    said = run(tmp_path, [str(tmp_path / "srun"), *inside]).stderr
    assert said.count("srun hangcheck run -- python train.py") == (not inside)


@pytest.mark.real
def test_a_python_that_runs_no_start_up_file_is_a_gap(tmp_path: Path) -> None:
    program = "import time; time.sleep(1000)"
    process = start_run(
        tmp_path,
        [sys.executable, "-uI", "-X", "dev", "-c", program, "-S"],
        RANK="0",
        WORLD_SIZE="1",
        HANGCHECK_SUSPECT_OUTSIDE_AFTER="4",
    )
    errors = ""
    with ending(process):
        while "SUSPECT" not in errors:
            errors += process.stderr.readline()
        until((tmp_path / "run/verdict.json").exists, "its verdict on the disk")
    (gap,) = verdict_of(tmp_path / "run").gaps
    assert (gap.what, gap.why.partition(";")[0]) == (
        "steps and sections",
        "its Python did not run our start-up file",
    )


# What leaves the sidecar: evidence first, then word to the launcher, then text.

WORD, NEXT_WORD = HangProven(ranks=((17, 99),)), HangProven(ranks=((18, 99),))
CASE = job(rank(0, IN_BARRIER), rank(1, IN_LOAD))
HANG = judge(CASE)


class Desk(NamedTuple):
    """A writer, and what the launcher heard of it."""

    writer: Writer
    heard: list[tuple[HangProven, int | None]]

    def prove(self, word: HangProven = WORD) -> None:
        self.writer.publish(CASE, HANG, "report", word)

    def hears(self, **told: bool) -> bool:
        """Tell what is due, and whether the launcher has heard anything."""
        self.writer.tell(**told)
        return bool(self.heard)


@pytest.fixture
def open_desk(tmp_path: Path) -> Iterator[Callable[..., Desk]]:
    desks: list[Desk] = []

    def opened(*, ends_the_job: bool = False) -> Desk:
        heard: list[tuple[HangProven, int | None]] = []
        (tmp_path / "journals").mkdir(exist_ok=True)
        writer = Writer(
            RunFolder(tmp_path / "run"),
            tmp_path / "journals",
            tell_launcher=lambda word, _, number: heard.append((word, number)),
            ends_the_job=ends_the_job,
        )
        desks.append(Desk(writer, heard))
        return desks[-1]

    yield opened
    for desk in desks:
        desk.writer.close(30.0)


def held_up(desk: Desk) -> threading.Event:
    """Have the writing thread wait, as for storage; returns what lets it go on."""
    go_on = threading.Event()
    desk.writer.save(go_on.wait)
    return go_on


def test_a_hang_is_told_once_its_evidence_is_saved_and_printed_after_that(
    open_desk: Callable[..., Desk], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = open_desk()
    go_on = held_up(desk)
    desk.prove()
    assert not desk.hears()
    assert "HANG" not in capfd.readouterr().err
    go_on.set()
    until(lambda: desk.hears(alone=False), "the launcher to be told")
    assert "HANG" in capfd.readouterr().err
    assert desk.heard == [(WORD, 1)]
    saved = msgspec.json.decode((tmp_path / "run/verdicts/1.json").read_bytes(), type=Verdict)
    assert saved == HANG
    assert not desk.writer.waits


@pytest.mark.parametrize("ends_the_job", [False, True])
def test_neither_storage_that_does_not_answer_nor_other_nodes_are_waited_for_long(
    open_desk: Callable[..., Desk],
    ends_the_job: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(writing, "TOLD_AFTER_S", 0.1)
    desk = open_desk(ends_the_job=ends_the_job)
    go_on = held_up(desk)
    desk.prove()
    until(lambda: desk.hears(alone=False), "the launcher to be told")
    assert desk.heard == [(WORD, None)]
    assert "HANG" in capfd.readouterr().err
    go_on.set()


def test_a_job_is_ended_for_it_once_other_nodes_had_time_to_read_it(
    open_desk: Callable[..., Desk],
) -> None:
    desk = open_desk(ends_the_job=True)
    desk.prove()
    saved = threading.Event()
    desk.writer.save(saved.set)
    assert saved.wait(30.0)
    assert not desk.hears(alone=False)
    assert desk.hears()


def test_a_job_that_moves_again_is_not_ended(open_desk: Callable[..., Desk]) -> None:
    """It may while other nodes are waited for; the next hang is proven anew."""
    desk = open_desk(ends_the_job=True)
    desk.prove()
    assert not desk.hears(alone=False)
    assert not desk.hears(stands=False)
    assert not desk.hears()
    desk.prove(NEXT_WORD)
    until(desk.hears, "the launcher to be told")
    assert desk.heard == [(NEXT_WORD, 2)]


def test_whatever_fails_in_the_thread_that_writes_is_said_once_and_later_evidence_is_saved(
    open_desk: Callable[..., Desk], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    desk = open_desk()
    desk.writer.save(lambda: 1 // 0)
    desk.writer.save(lambda: {}["x"])
    desk.prove()
    until(desk.hears, "the launcher to be told")
    assert (tmp_path / "run/verdicts/1.json").exists()
    assert capfd.readouterr().err.count("the watch goes on") == 1


def test_a_verdict_that_could_not_be_saved_is_told_all_the_same_and_a_gap_of_the_next(
    open_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    desk = open_desk()
    (tmp_path / "run").write_text("in the way")
    desk.prove()
    until(desk.hears, "the launcher to be told")
    assert desk.heard == [(WORD, None)]
    (gap,) = desk.writer.gaps
    assert gap.what == "a verdict hang before this"
    assert gap.why.startswith("it could not be saved (")


def test_the_evidence_of_an_earlier_sidecar_is_not_overwritten(
    open_desk: Callable[..., Desk], tmp_path: Path
) -> None:
    """It may have been ended between the evidence and its verdict."""
    (tmp_path / "run/evidence/3").mkdir(parents=True)
    desk = open_desk()
    desk.prove()
    until(desk.hears, "the launcher to be told")
    assert desk.heard == [(WORD, 4)]


def test_the_newest_is_there_in_the_end_and_others_may_read_it(tmp_path: Path) -> None:
    file = tmp_path / "job.prom"
    writer = NewestOnly(file)
    for number in range(100):
        writer.write(b"%d" % number)
    writer.close(b"last", 30.0)
    assert file.read_bytes() == b"last"
    assert file.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [file]


def test_what_cannot_be_written_is_said_once_and_comes_once_it_can(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "gone" / "job.prom"
    writer = NewestOnly(file)
    heard: list[str] = []

    def complaint() -> bool:
        heard.append(capfd.readouterr().err)
        return "cannot be written (No such file or directory)" in "".join(heard)

    writer.write(b"one")
    until(complaint, "a complaint")
    writer.write(b"two")
    file.parent.mkdir()
    writer.close(b"three", 30.0)
    heard.append(capfd.readouterr().err)
    assert "".join(heard).count("watching goes on") == 1
    assert file.read_bytes() == b"three"
