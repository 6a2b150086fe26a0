"""`hangcheck run --junit`: one test case, that CI can show."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree as Xml

import pytest
from cases import IN_WANDB, job, rank
from watch.launched import python, run

from lightning_hangcheck.diagnosis import judge
from lightning_hangcheck.launch.junit import junit_of
from lightning_hangcheck.rundir.layout import RunFolder

if TYPE_CHECKING:
    from pathlib import Path

    from lightning_hangcheck.model.verdict import Verdict

HUNG = judge(job(rank(0, IN_WANDB, silent=400.0), rank(1, IN_WANDB, silent=400.0)))


def case_of(data: bytes) -> Xml.Element:
    case = Xml.fromstring(data).find("testsuite/testcase")  # noqa: S314 - written by us
    assert case is not None
    return case


@pytest.mark.parametrize(
    ("code", "verdict", "kind"),
    [(0, None, None), (0, HUNG, None), (75, HUNG, "failure"), (1, None, "error")],
)
def test_a_hang_is_a_failure_and_any_other_end_an_error(
    code: int, verdict: Verdict | None, kind: str | None, tmp_path: Path
) -> None:
    """A job that ended well has passed, whatever was suspected on its way."""
    case = case_of(junit_of("train.py", RunFolder(tmp_path / "run"), verdict, code, 12.5))
    assert (case.get("classname"), case.get("name"), case.get("time")) == (
        "hangcheck.run",
        "train.py",
        "12.500",
    )
    assert [child.tag for child in case] == ([kind] if kind else [])
    if kind == "failure":
        assert (case[0].get("type"), case[0].get("message")) == (HUNG.cause, HUNG.summary)
        assert f"hangcheck report {tmp_path}/run" in (case[0].text or "")


@pytest.mark.real
def test_a_run_that_fails_leaves_its_file(tmp_path: Path) -> None:
    ended = run(tmp_path, python("raise SystemExit(3)"), "--junit", "run.xml")
    assert ended.returncode == 3
    case = case_of((tmp_path / "run.xml").read_bytes())
    assert [child.tag for child in case] == ["error"]
    assert "exit code 3" in (case[0].text or "")
