"""Whatever a job calls its functions, files, hosts and ranks: on the page it is text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, rank, user
from page_runs import ReadPage, case_of, written

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.verdict import Edge, EvidenceItem, Remedy
from lightning_hangcheck.text.shown import visible

if TYPE_CHECKING:
    from pathlib import Path

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
    case = case_of(*(msgspec.structs.replace(view, host=name) for view in views), command=name)
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
