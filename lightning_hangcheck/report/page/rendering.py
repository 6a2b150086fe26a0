"""Writes a run in the forms that leave the terminal; of the page all is escaped in one place."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.model.verdict import Gap
from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.page import blocks
from lightning_hangcheck.report.page.copied_text import issue_text, prompt_text
from lightning_hangcheck.report.page.history import lanes, run_history, ticks
from lightning_hangcheck.report.page.page_facts import PageFacts, moment, read_page_facts
from lightning_hangcheck.report.page.wait_graph import draw_graph, wait_graph
from lightning_hangcheck.report.perfetto import render_trace
from lightning_hangcheck.report.stragglers import find_stragglers, trend_words
from lightning_hangcheck.settings import PREFIX
from lightning_hangcheck.text.shown import bytes_in_words, seconds_in_words, several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from jinja2 import Template

    from lightning_hangcheck.model import evidence
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder

Form = Literal["page", "issue", "prompt", "perfetto"]
TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 4_000
LONGEST_SHOWN = 65_536
MOST_EVIDENCE = 200


def write_as(
    form: Form,
    folder: RunFolder,
    verdict: Verdict,
    case: Case | None,
    *,
    run_folder: str,
    environment: Mapping[str, str] | None = None,
    gaps: Iterable[evidence.Gap] = (),
    goes_on: bool = False,
) -> str:
    """Write a run as HTML that asks no host for anything, as Markdown, or for another tool.

    Its environment may have the price of an hour; one that cannot be read never costs the page. A
    page of a run that ``goes_on`` reloads itself: it will be written again at the same place.
    """
    try:
        prices = read_prices([(environment or {}).get(f"{PREFIX}PRICE", "")])
    except BadUsage:
        prices = Prices()
    known = PageFacts(
        verdict=verdict,
        case=case,
        run_folder=run_folder,
        prices=prices,
        goes_on=goes_on,
        gaps=tuple(map(Gap.of, gaps)),
    )
    facts = read_page_facts(folder, known, all_ranks=form == "perfetto")
    writers = {"page": render_page, "perfetto": render_trace}
    return {**writers, "issue": issue_text, "prompt": prompt_text}[form](facts)


def render_page(facts: PageFacts) -> str:
    """Write report.html, a template over these facts.

    Returns:
        A whole page that asks no host for anything.
    """
    verdict = facts.verdict
    (nodes, edges), history = wait_graph(facts), run_history(facts)
    stalled_since = moment(verdict.stalled_since)
    return _template().render(
        verdict=verdict,
        facts=facts,
        summary=verdict_text.summary(verdict),
        reason=verdict_text.reason(verdict),
        remedy=next(iter(verdict.remedies), None),
        cost=_cost(facts),
        graph=draw_graph(nodes, edges) if nodes else None,
        history=history,
        lanes=lanes(facts, history) if history else [],
        ticks=ticks(history) if history else [],
        stall_left=history.place(stalled_since) if history and stalled_since else 100.0,
        steps=find_stragglers(facts.case),
        grids=blocks.collective_grids(facts),
        trees=blocks.stack_trees(verdict),
        diff=blocks.stack_diff(verdict),
        processes=blocks.shown_processes(facts),
        kernel_looks=list(blocks.looks(facts, len(facts.shown), "kernel")),
        differences=blocks.differences(facts),
        identities=blocks.identities(facts),
        evidence=verdict.evidence[:MOST_EVIDENCE],
        gaps=list(verdict_text.gap_lines((*verdict.gaps, *facts.gaps)))[:MOST_EVIDENCE],
        issue=issue_text(facts),
        prompt=prompt_text(facts),
    )


def _cost(facts: PageFacts) -> str:
    """How long and how much, and what a restart throws away; empty where nothing stands still."""
    verdict = facts.verdict
    cost = verdict_text.stall_cost(verdict)
    if not cost:
        return ""
    gpus = {
        gpu.name
        for view in (facts.case.ranks if facts.case is not None else ())
        for look in view.processes
        for sample in look.samples[-1:]
        for gpu in sample.gpus
    }
    price = facts.prices.cost(sorted(gpus), max(1, verdict.world_size), verdict.stalled_for_s)
    money = "" if price is None else f" = {price:.2f} at your price"
    lost = next((f"; {item.text}" for item in verdict.evidence if item.kind == "lost"), "")
    return f"{cost}{money}{lost}"


@cache
def _template() -> Template:
    """With the page's style and script. Imported late: the sidecar imports the report early."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for kind in ("css", "js"):
        part = (TEMPLATES / f"page.{kind}").read_text("utf-8")
        # as a content security policy names an inline style or script
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        environment.globals |= {kind: part, f"{kind}_hash": f"sha256-{digest}"}
    environment.globals |= {"version": __version__, "grid_words": blocks.ENTERED}
    for function in (
        *(several, bytes_in_words, seconds_in_words, trend_words, verdict_text.name_ranks),
        *(verdict_text.name_process, blocks.shortened, blocks.folded_lines),
    ):
        environment.globals[function.__name__] = function
    return environment.get_template("page.html.jinja")


def _shown(value: object) -> object:
    """Every value of the page goes through here, before it is escaped for HTML.

    What would turn the direction of writing, or is obeyed by a terminal into which the page is
    printed, is shown by its escape; lines stay lines; nothing is without end.
    """
    if type(value) is not str:  # what the templates and this package's own files hold is Markup
        return "" if value is None else value
    lines = re.split(r"\r\n|\r|\n", value[:LONGEST_SHOWN])
    return "\n".join(visible(line)[:LONGEST_TEXT] for line in lines)
