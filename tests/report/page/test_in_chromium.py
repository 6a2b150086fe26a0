"""The page in a real browser: nothing is fetched, nothing complains, and what can be used works."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

import msgspec
import pytest
from cases import IN_ALL_REDUCE, rank, user
from headless import Browser, installed_browser
from page_runs import alike, case_of, written

from lightning_hangcheck.judge import judge
from lightning_hangcheck.model.case import StepMark
from lightning_hangcheck.model.codec import encode
from lightning_hangcheck.model.verdict import Edge, EvidenceItem
from lightning_hangcheck.report.serving.run_pages import RunPages
from lightning_hangcheck.report.serving.server import ReportServer
from lightning_hangcheck.rundir.layout import RunFolder, prepare_run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]
FOLDS = """
(() => {
  const one = document.querySelector("#stacks details");
  const before = one.open;
  one.querySelector("summary").click();
  return [before, one.open];
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


HOVERS = """
(() => {
  const steps = document.querySelectorAll("svg.timeline .lane rect.steps");
  steps[0].dispatchEvent(new PointerEvent("pointerover", { bubbles: true }));
  const wide = [...steps].map((one) => one.getBoundingClientRect().width > 0);
  return [...wide, document.getElementById("hovered").textContent];
})()
"""


SHOWS = """
(async (wanted) => {
  const text = () => document.getElementById("report").contentDocument?.body?.textContent ?? "";
  for (let turn = 0; turn < 3000 && !text().includes(wanted); turn += 1)
    await new Promise((done) => setTimeout(done, 20));
  return text().includes(wanted);
})
"""
HANDS_OVER = """
(async () => {
  const opened = document.createElement("iframe");
  document.body.append(opened);
  const tab = opened.contentWindow;
  const posted = [];
  const addresses = [];
  tab.postMessage = (message, origin) => posted.push([message, origin]);
  window.open = (address) => { addresses.push(address); return tab; };
  document.getElementById("perfetto").click();
  const until = async (holds) => {
    for (let turn = 0; turn < 3000 && !holds(); turn += 1)
      await new Promise((done) => setTimeout(done, 20));
  };
  const say = (origin) =>
    window.dispatchEvent(new MessageEvent("message", { data: "PONG", origin, source: tab }));
  await until(() => posted.length > 1);
  say("https://evil.example");
  const early = posted.filter(([message]) => message !== "PING").length;
  say("https://ui.perfetto.dev");
  await until(() => posted.some(([message]) => message !== "PING"));
  const [[trace, origin]] = posted.filter(([message]) => message !== "PING");
  const events = JSON.parse(new TextDecoder().decode(trace.perfetto.buffer)).traceEvents;
  const names = new Set(events.map((event) => event.name));
  return [addresses[0], posted[0], early, origin, names.has("no progress")];
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


@pytest.mark.parametrize("width", [1200, 390])
def test_the_page_works(browser: Browser, width: int, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(written(tmp_path, alike(64)))
    browser.open(page, width)
    assert browser.evaluate("document.querySelectorAll('svg.graph .node').length") == 2
    assert browser.evaluate("document.querySelectorAll('svg.timeline .lane').length") == 2
    assert browser.evaluate(FOLDS) == [False, True]
    assert browser.evaluate(ZOOMS) == [2, 1]
    assert browser.evaluate(COPIES) == "copied"
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("location.hash = '#rank-5-pid-105-thread-105-frame-1'")
    opened = "document.querySelector(':target').closest('details').open"
    assert browser.evaluate(opened) is True
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


def test_steps_are_on_the_lanes(browser: Browser, tmp_path: Path) -> None:
    marks = (StepMark(100, 35.0), StepMark(101, 33.0), StepMark(103, 31.0))
    view = msgspec.structs.replace(rank(0, IN_ALL_REDUCE), steps=marks)
    page = tmp_path / "report.html"
    page.write_text(written(tmp_path, case_of(view, rank(1, IN_ALL_REDUCE))))
    browser.open(page, 1200)
    assert browser.evaluate(HOVERS) == [True, True, "step 101: 2 s from 10:23:41"]
    assert browser.complaints == []


def test_a_served_page_follows_its_run_and_hands_its_trace_over(
    browser: Browser, tmp_path: Path
) -> None:
    """Perfetto's part is played by a frame: what is posted to it, and whose answer counts."""
    folder = prepare_run_folder(RunFolder(tmp_path / "run"))
    case = alike(8)
    pages = RunPages(folder, "run", lambda saved: "no verdict yet")
    with ReportServer(pages) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        browser.visit(server.address, 1200)
        assert browser.evaluate(f"{SHOWS}('no verdict yet')") is True
        folder.evidence(1).mkdir()
        (folder.evidence(1) / "case.json").write_bytes(encode(case))
        for file in (folder.numbered_verdict(1), folder.verdict_file):
            file.write_bytes(encode(judge(case)))
        assert browser.evaluate(f"{SHOWS}('Who waits for whom')") is True
        address, first, early, origin, has_stall = browser.evaluate(HANDS_OVER)
        assert address.startswith("https://ui.perfetto.dev/?visStart=")
        assert first == ["PING", "https://ui.perfetto.dev"]
        assert (early, origin, has_stall) == (0, "https://ui.perfetto.dev", True)
        assert browser.complaints == []
        assert all(one.startswith(server.address) for one in browser.requests)
        browser.visit("about:blank", 1200)
        server.shutdown()
        thread.join(60)
    assert not thread.is_alive()


def test_dark_is_dark(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(written(tmp_path, alike(8)))
    shown = []
    for dark in (False, True):
        browser.open(page, 800, dark=dark)
        shown.append(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shown == ["rgb(255, 255, 255)", "rgb(21, 23, 26)"]


def test_hostile_names_do_nothing(browser: Browser, tmp_path: Path) -> None:
    name = "</textarea></script><script>document.title='owned'</script><img src=//evil.example/x>"
    case = case_of(rank(0, (user(name, 3, f"{name}.py"),)), rank(1, IN_ALL_REDUCE), command=name)
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
