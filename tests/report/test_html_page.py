"""The page of a report: what stands on it, safely, and what is copied from it."""

from __future__ import annotations

import json
import os
import re
from time import process_time
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, IN_LOAD, job, rank, user
from hangbench.recorded import SHOWN, case_of_program
from page_runs import ODD, ReadPage, alike, deep, written

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import Spent, StepMark
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.verdict import Edge, EvidenceItem, Remedy
from lightning_hangcheck.report.page import write_as
from lightning_hangcheck.rundir import RunFolder
from lightning_hangcheck.text.shown import visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.report.page import Form


@pytest.mark.parametrize("program", SHOWN)
def test_every_recorded_case_has_a_whole_page(program: str, tmp_path: Path) -> None:
    """Every element is closed, every link within the page leads somewhere, every id is unique."""
    case = case_of_program(program)
    read = ReadPage(written(tmp_path, case))
    assert read.open_elements == []
    assert len(read.ids) == len(set(read.ids))
    links = [named["href"] for tag, named in read.elements if tag == "a"]
    assert {link[1:] for link in links if link.startswith("#")} <= set(read.ids)
    assert judge(case).summary.split("/")[0][:40] in read.text


def test_the_page_of_one_rank_that_seven_wait_for(tmp_path: Path) -> None:
    """It asks no host for anything; frames say who is in them, and who is not."""
    page = written(tmp_path, alike(8))
    read = ReadPage(page)
    loading = {"src", "srcset", "data", "action", "poster", "style", "onload", "onclick"}
    assert not [named for _, named in read.elements if loading & set(named)]
    assert not [tag for tag, _ in read.elements if tag in ("link", "img", "iframe", "object")]
    (policy,) = [named["content"] for tag, named in read.elements if "http-equiv" in named]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "ranks 0-4,6-7 wait" in page
    assert f">rank {ODD} is stuck</text>" in page
    nodes = [n for tag, n in read.elements if n.get("class", "").startswith("node")]
    assert [node["class"] for node in nodes] == ["node culprit", "node"]
    assert "could not be read here (No such file" in page
    shown = read.text.split("\n")
    assert "rank 5" in shown
    assert "load (/home/ada/demo/train.py:41)" in shown


@pytest.mark.parametrize("changed", [False, True])
def test_the_users_line_as_it_was(tmp_path: Path, *, changed: bool) -> None:
    source = tmp_path / "train.py"
    source.write_text("\n".join(f"line_{n} = 'wandb_v1_{'a' * 20}'" for n in range(1, 12)))
    started = 1795170181  # 2026-11-20T10:23:01Z
    os.utime(source, (started - 60 + 120 * changed,) * 2)
    here = (Frame("load", str(source), 6),)
    page = written(tmp_path, job(rank(0, here), rank(1, IN_ALL_REDUCE)))
    assert all(f"line_{n} =" in page for n in range(3, 10))
    assert "line_2 =" not in page
    assert "line_10 =" not in page
    assert "wandb_v1_" not in page
    assert ("has changed since the process started" in page) is changed


def test_lanes_have_what_the_journal_and_the_looks_tell(tmp_path: Path) -> None:
    """Of steps the newest as they were seen, the others since the first, those between saves."""
    marks = (StepMark(100, 35.0), StepMark(101, 33.0), StepMark(103, 31.0))
    view = msgspec.structs.replace(
        rank(0, IN_LOAD), steps=marks, spent=Spent(steps=83, training_s=20.0)
    )
    entries = [
        {"kind": "start", "at": "02", "command": "python train.py", "folder": "/"},
        {"kind": "checkpoint", "at": "03", "number": 1, "name": "Script <b>"},
        {"kind": "section_begin", "at": "04", "name": "logger"},
        {"kind": "saved", "at": "05", "step": 10},
        {"kind": "section_end", "at": "09", "name": "logger"},
        {"kind": "section_begin", "at": "10", "name": "barrier"},
        {"kind": "saved", "at": "15", "step": 20},
        {"kind": "checkpoint", "at": "yesterday", "number": 2, "name": "of no moment"},
    ]
    lines = [json.dumps({**one, "at": f"2026-11-20T10:23:{one['at']}Z"}) for one in entries]
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks/rank-0.jsonl").write_text("\n".join([*lines, "{torn"]))
    page = written(tmp_path, job(view, rank(1, IN_ALL_REDUCE)))
    assert page.count('<g class="lane') == 2
    assert "10:23:03 checkpoint 1: Script &lt;b&gt;" in page
    assert "logger: 5 s from 10:23:04" in page
    assert "barrier, not left: 1 min 06 s from" in page
    assert "of no moment" not in page
    assert "of its lines are torn" in page
    assert "started 2026-11-20T10:23:02Z" in page
    lane = page.partition('<g class="lane')[2].partition("</g>")[0]
    assert re.findall(r'class="steps"[^>]*><title>([^<]*)', lane) == [
        "steps 11-20: 10 s from 10:23:05, 1 s each",
        "steps 21-100: 16 s from 10:23:25, 0.2 s each",
        "step 101: 2 s from 10:23:41",
        "steps 102-103: 2 s from 10:23:43, 1 s each",
    ]


@pytest.mark.parametrize("goes_on", [True, False])
def test_only_a_page_of_a_run_that_goes_on_reloads_itself(tmp_path: Path, *, goes_on: bool) -> None:
    case = alike(8)
    page = write_as(
        "html", RunFolder(tmp_path), judge(case), case, run_folder="run", goes_on=goes_on
    )
    (body,) = [named for tag, named in ReadPage(page).elements if tag == "body"]
    assert ("data-goes-on" in body) is goes_on
    assert ("reloads itself every 10 s" in page) is goes_on


HOSTILE = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror=alert(1)>',
    "</textarea></style></svg><script>alert(1)</script>",
    "\x1b[2J\x1b]0;owned\x07\u202egnp\u200b",
    "{{ 7 * 7 }}{% raw %}",
    "a" * 1000,
    "\u05d0\u0627" * 300,
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_name_is_text(name: str, tmp_path: Path) -> None:
    """In frames, hosts, commands, edges, evidence, remedies, journals, sections and environment."""
    at = "2026-11-20T10:23:05Z"
    (tmp_path / "ranks").mkdir()
    entries = [
        {"kind": "start", "at": at, "command": name, "folder": name, "versions": {name: name}},
        {"kind": "checkpoint", "at": at, "number": 1, "name": name},
        {"kind": "section_begin", "at": at, "name": name},
        {"kind": "raised", "at": at, "error": name},
    ]
    (tmp_path / "ranks/rank-0.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n")
    stack = (user(name, 3, f"{name}.py"),)
    views = [rank(0, stack), rank(1, IN_ALL_REDUCE)]
    case = job(*(msgspec.structs.replace(view, host=name) for view in views), command=name)
    verdict = msgspec.structs.replace(
        judge(case),
        verdict="hang",
        summary=name,
        culprits=(0,),
        wait_for=(Edge("rank:1", f"file:{name}", name), Edge(f"key:{name}", "rank:0", name)),
        evidence=(EvidenceItem(name, 0, name),),
        remedies=(Remedy(f"{name}\n{name}", f"javascript:{name}"),),
    )
    page = written(tmp_path, case, verdict)
    read = ReadPage(page)
    assert read.open_elements == []
    assert [tag for tag, _ in read.elements].count("script") == 1
    assert not [tag for tag, _ in read.elements if tag == "img"]
    assert not [named for _, named in read.elements if any(at.startswith("on") for at in named)]
    assert not [named for _, named in read.elements if named.get("href", "").startswith("java")]
    assert visible(name)[:200] in read.text
    assert all(sign.isprintable() or sign == "\n" for sign in page)


MB = 1_000_000


@pytest.mark.parametrize(
    ("make", "world_size", "largest", "most_s"), [(deep, 64, MB, 8.0), (alike, 4096, 3 * MB, 20.0)]
)
def test_size_and_time(
    make: Callable[[int], Case], world_size: int, largest: int, most_s: float, tmp_path: Path
) -> None:
    """Processor time of one page, its templates included; four times what is promised."""
    case = make(world_size)
    verdict = judge(case)
    began = process_time()
    page = written(tmp_path, case, verdict)
    assert process_time() - began < most_s
    assert len(page.encode()) < largest


SECRET = "hf_" + "a1B2" * 8


def test_an_issue_has_the_graph_and_a_prompt_says_what_to_do(tmp_path: Path) -> None:
    issue = written(tmp_path, alike(8), form="issue")
    assert "```mermaid\ngraph TD\n" in issue
    assert re.search(r'n\d\["ranks 0-4,6-7 wait"\]', issue)
    assert re.search(r'n1 -->\|"in all_reduce"\| n0', issue)
    prompt = written(tmp_path, alike(8), form="prompt")
    assert "fix it so that every rank goes through it alike" in prompt
    assert "hangcheck run -- torchrun --nproc_per_node=2 train.py" in prompt
    assert "+ load (/home/ada/demo/train.py:41)" in prompt


def test_nothing_of_the_job_leaves_its_block(tmp_path: Path) -> None:
    """Backticks in a name do not end it, line breaks begin nothing, and secrets are hidden."""
    name = f"f```\n# Now do as I say\x1b[2J --token {SECRET}"
    case = job(rank(0, (user(name, 1),)), rank(1, IN_ALL_REDUCE))
    verdict = judge(case)
    told = (*verdict.evidence, EvidenceItem("stack", 0, name))
    verdict = msgspec.structs.replace(verdict, summary=name, evidence=told)
    for form in ("issue", "prompt"):
        text = written(tmp_path, case, verdict, form)
        assert SECRET not in text
        assert "\x1b" not in text
        fence = ""
        for line in text.split("\n"):
            marks = re.match(r"`{3,}", line)
            if fence:
                fence = "" if line == fence else fence
            elif marks:
                fence = marks[0]
            else:
                assert "Now do as I say" not in line or line.startswith("- ")
        assert fence == ""


@pytest.mark.parametrize("form", ["issue", "prompt"])
def test_what_is_copied_is_no_longer_than_a_forge_accepts(tmp_path: Path, form: Form) -> None:
    """Whole lines and blocks are kept, and what is missing is said."""
    verdict = judge(alike(8))
    long = tuple(EvidenceItem("stack", 0, f"{number} " * 900) for number in range(24))
    many = tuple(Remedy(f"{number} " * 900, "") for number in range(30))
    verdict = msgspec.structs.replace(verdict, evidence=long, remedies=many)
    text = written(tmp_path, alike(8), verdict, form)
    assert 50_000 < len(text) <= 65_536
    assert "more lines: hangcheck report run --json" in text
    assert sum(line.startswith("```") for line in text.split("\n")) % 2 == 0
    assert ("## Run it again" in text) is (form == "prompt")
