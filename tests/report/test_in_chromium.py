"""The page in a real browser: nothing is fetched, nothing complains, and what can be used works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, job, rank, user
from headless import Browser, installed_browser
from long_tests import WHEN_ASKED_FOR
from page_runs import alike, written

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.verdict import Edge, EvidenceItem
from lightning_hangcheck.report.page import write_as
from lightning_hangcheck.rundir import RunFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
FOLDS = """
(() => {
  const stack = document.querySelector("#stacks details");
  const before = stack.open;
  stack.querySelector("summary").click();
  return [before, stack.open];
})()
"""
ZOOMS = """
(() => {
  const width = () => document.getElementById("lanes").getBoundingClientRect().width;
  const click = (how) => document.querySelector(`[data-zoom=${how}]`).click();
  const whole = width();
  click("in");
  const nearer = width();
  click("fit");
  return [Math.round(nearer / whole), Math.round(width() / whole)];
})()
"""
COPIES = """
(async () => {
  document.querySelector("[data-copy=issue]").click();
  for (let turn = 0; turn < 200 && !document.getElementById("said").textContent; turn += 1)
    await new Promise((done) => setTimeout(done, 20));
  return document.getElementById("said").textContent;
})()
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = installed_browser()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium-headless-shell")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.mark.parametrize("width", [1200, pytest.param(390, marks=WHEN_ASKED_FOR)])
def test_the_page_works(browser: Browser, width: int, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(written(tmp_path, alike(64)))
    browser.open(page, width)
    assert browser.evaluate("document.querySelectorAll('svg.graph .node').length") == 2
    assert browser.evaluate("document.querySelectorAll('svg.timeline .lane').length") == 2
    assert browser.evaluate(FOLDS) == [True, False]  # the culprit's stack is open
    assert browser.evaluate(ZOOMS) == [2, 1]
    assert browser.evaluate(COPIES) == "copied"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("location.hash = '#rank-5-pid-105-thread-105-frame-1'")
    opened = "document.querySelector(':target').closest('details').open"
    assert browser.evaluate(opened) is True
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


@WHEN_ASKED_FOR
def test_a_page_of_a_run_that_goes_on_reloads_itself_until_it_is_read(
    browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "report.html"
    case = alike(8)
    page.write_text(
        write_as("html", RunFolder(tmp_path), judge(case), case, run_folder="run", goes_on=True)
    )
    browser.open(page, 800)
    said = "document.getElementById('said').textContent"
    assert browser.evaluate(said).startswith("reloads itself")
    browser.evaluate("document.dispatchEvent(new Event('pointerdown'))")
    assert browser.evaluate(said).startswith("no longer reloads itself")
    assert browser.complaints == []


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    name = "</textarea></script><script>document.title='owned'</script><img src=//evil.example/x>"
    case = job(rank(0, (user(name, 3, f"{name}.py"),)), rank(1, IN_ALL_REDUCE), command=name)
    verdict = msgspec.structs.replace(
        judge(case),
        summary=name,
        wait_for=(Edge("rank:1", f"file:{name}", name),),
        evidence=(EvidenceItem(name, 0, name),),
    )
    page = tmp_path / "report.html"
    page.write_text(written(tmp_path, case, verdict))
    browser.open(page, 800)
    assert browser.evaluate("document.title") != "owned"
    assert browser.evaluate("document.images.length") == 0
    assert name in browser.evaluate("document.querySelector('.summary').textContent")
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]
