"""What a run's folder tells: its verdict from its evidence, and its trace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank
from hangbench.recorded import SHOWN, case_of_program
from page_runs import written
from processes import run_python
from trace_rules import checked, named

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.codec import encode_packed, encode_pretty
from lightning_hangcheck.model.evidence import Frame, Holder, WaitTarget
from lightning_hangcheck.observe.run_record import save_run
from lightning_hangcheck.report.saved_run import read_saved_run
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

BLOCKED = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {'torch', 'lightning', 'pytorch_lightning', 'transformers',
                                      'wandb', 'numpy'}:
            raise ImportError(f'{name} is not installed here')
sys.meta_path.insert(0, Blocker())
from lightning_hangcheck.cli.main import invoke
sys.exit(invoke(['report', *sys.argv[1:]]))
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run whose verdicts are lost and whose evidence is there."""
    case = case_of_program("logger_stalls")
    made = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), made)
    return made


@pytest.mark.parametrize("program", SHOWN)
def test_a_lost_verdict_comes_back_from_its_evidence(program: str, tmp_path: Path) -> None:
    """Byte for byte, after the way through the file."""
    recorded = case_of_program(program)
    folder = RunFolder(tmp_path / "run")
    save_run(recorded, judge(recorded), (), folder)
    lost = folder.verdict_file.read_bytes()
    folder.verdict_file.unlink()
    folder.numbered_verdict(1).unlink()
    saved = read_saved_run(folder)
    assert encode_pretty(saved.verdict) == lost
    assert saved.case is not None


def test_evidence_is_judged_where_torch_is_not_installed(folder: RunFolder) -> None:
    lost = folder.verdict_file.read_text()
    folder.verdict_file.unlink()
    reported = run_python("-c", BLOCKED, "--json", folder.path)
    assert (reported.returncode, reported.stderr) == (0, "")
    assert reported.stdout == lost


def test_names_that_are_not_utf8_are_saved_by_their_escapes(tmp_path: Path) -> None:
    """A lock's file, a process, and the line's own file."""
    here = Frame("take_lock", "/data/\udcff/train.py", 7)
    lock = WaitTarget(
        call="flock",
        kind="lock",
        name="/data/\udcff.lock",
        holders=(Holder(pid=7, program="\udcfe"),),
    )
    case = job(rank(0, (here,), waits_for=(lock,)), rank(1, IN_ALL_REDUCE))
    folder = RunFolder(tmp_path / "run")
    save_run(case, judge(case), (), folder)
    saved = read_saved_run(folder)
    assert saved.case is not None
    assert saved.verdict.cause == "file_lock"
    assert r"/data/\udcff.lock" in saved.verdict.summary
    encode_packed(case)  # as nodes tell each other, and as ranks that stand alike are found


def test_evidence_that_was_not_finished_is_a_gap(folder: RunFolder) -> None:
    folder.verdict_file.unlink()
    (folder.evidence(1) / "case.json").unlink()
    saved = read_saved_run(folder)
    assert saved.verdict is None
    assert [gap.why for gap in saved.gaps] == ["it was not finished"]


# The trace of a run, held to the rules of its format.

DAY = "2026-11-20T10:23:"
SECOND_NS = 1_000_000_000
NOON_NS = 1_795_170_180 * SECOND_NS
"""10:23:00 of that day."""


def _journal(folder: Path, number: int, *lines: tuple[str, str, object]) -> None:
    """Lines of (second, kind, name or step)."""
    (folder / "ranks").mkdir(exist_ok=True)
    entries = [
        {"at": f"{DAY}{at}Z", "kind": kind, ("step" if kind == "saved" else "name"): what}
        for at, kind, what in lines
    ]
    text = "\n".join(map(json.dumps, entries))
    (folder / "ranks" / f"rank-{number}.jsonl").write_text(f"{text}\n")


def _lasting(text: str, name: str) -> list[tuple[int, int]]:
    """Seconds after 10:23 at which it began, and for which it lasted."""
    return [
        (event["ts"] // 1_000_000 - NOON_NS // SECOND_NS, event["dur"] // 1_000_000)
        for event in checked(text)
        if event["ph"] == "X" and event["name"] == name
    ]


@pytest.mark.parametrize("program", SHOWN)
def test_every_recorded_case_keeps_the_rules(program: str, tmp_path: Path) -> None:
    case = case_of_program(program)
    events = checked(written(tmp_path, case, form="perfetto"))
    ranks = {name for name in named(events, "process_name").values() if name.startswith("rank ")}
    assert ranks == {f"rank {view.rank}" for view in case.ranks}
    assert [event["name"] for event in events if event.get("cat") == "verdict"]


def test_arrows_lead_to_whom_a_rank_waits_for_and_the_hole_is_seen(tmp_path: Path) -> None:
    kinds, names = set(), set()
    for number, program in enumerate(SHOWN):
        (tmp_path / str(number)).mkdir()
        case = case_of_program(program)
        events = checked(written(tmp_path / str(number), case, form="perfetto"))
        kinds |= {event["ph"] for event in events}
        names |= {event["name"].partition(", ")[2] for event in events}
    assert {"s", "f"} <= kinds
    assert {"not ended", "not entered"} <= names


def test_journals_are_sections_steps_and_what_was_not_seen(tmp_path: Path) -> None:
    """Sections that overlap have rows of their own; of one before missing lines nothing is told."""
    nested = [
        ("01", "checkpoint", "Script started"),
        ("02", "section_begin", "outer"),
        ("03", "section_begin", "inner"),
        ("05", "section_end", "inner"),
        ("08", "section_end", "outer"),
        ("10", "saved", 100),
        ("30", "saved", 140),
    ]
    missing = [
        ("02", "section_begin", "lost"),
        ("03", "dropped", "lines"),
        ("04", "section_begin", "barrier"),
    ]
    overlapping = [
        ("02", "section_begin", "one"),
        ("03", "section_begin", "two"),
        ("05", "section_end", "one"),
        ("08", "section_end", "two"),
    ]
    for number, lines in enumerate((nested, missing, overlapping)):
        _journal(tmp_path, number, *lines)
    with (tmp_path / "ranks/rank-2.jsonl").open("a") as journal:
        journal.write('{"at":"2026-11')
    case = job(*(rank(r, IN_LOAD if r == 0 else IN_ALL_REDUCE) for r in range(3)))
    text = written(tmp_path, case, form="perfetto")
    lasting = {
        "outer": [(2, 6)],
        "inner": [(3, 2)],
        "steps 101-140": [(10, 20)],
        "barrier, not left": [(4, 72)],
        "lost, not left": [],
        "one": [(2, 3)],
        "two": [(3, 5)],
    }
    assert {name: _lasting(text, name) for name in lasting} == lasting
    events = checked(text)
    (step,) = [event for event in events if event["name"] == "steps 101-140"]
    assert step["args"] == {"seconds_each": 0.5}
    assert "checkpoint None: Script started" in {event["name"] for event in events}
    assert {"sections", "sections 2"} <= set(named(events, "thread_name").values())
    told = json.loads(text)["otherData"]
    assert "1 of its lines are torn" in told["not seen 1"]


@pytest.mark.parametrize(
    "name",
    ["\x1b[2J\x1b]0;owned\x07\u202egnp\u200b", "a" * 100_000, "\ud800", "wandb_v1_" + "a" * 20],
    ids=["escape", "long", "surrogate", "secret"],
)
def test_a_hostile_name_is_harmless(name: str, tmp_path: Path) -> None:
    _journal(
        tmp_path,
        0,
        ("02", "section_begin", name),
        ("03", "checkpoint", name),
        ("04", "section_end", name),
    )
    case = job(rank(0, IN_LOAD), rank(1, IN_ALL_REDUCE), command=name)
    text = written(tmp_path, case, form="perfetto")
    checked(text)
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert "wandb_v1_" not in text
    assert len(text) < 20_000
