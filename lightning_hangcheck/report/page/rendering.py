"""Writes the page. What is shown is escaped in one place, whatever job it comes from."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.report import verdict_text
from lightning_hangcheck.report.page import blocks
from lightning_hangcheck.report.page.copied_text import issue_text, prompt_text
from lightning_hangcheck.report.page.history import lanes, run_history, ticks
from lightning_hangcheck.report.page.page_facts import is_moment
from lightning_hangcheck.report.page.wait_graph import draw_graph, wait_graph
from lightning_hangcheck.text.shown import read_utc, several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

    from lightning_hangcheck.report.page.page_facts import PageFacts

TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 4_000
LONGEST_SHOWN = 65_536
MOST_EVIDENCE = 200
_BREAKS = re.compile(r"\r\n|\r|\n")


def render_page(facts: PageFacts) -> str:
    """Write report.html, a template over these facts.

    Returns:
        A whole page that asks no host for anything.
    """
    verdict = facts.verdict
    graph, history = wait_graph(facts), run_history(facts)
    began = 100.0  # of the stall, on the axis of the lanes
    if history is not None and verdict.stalled_since and is_moment(verdict.stalled_since):
        began = history.place(read_utc(verdict.stalled_since))
    environment, style, script = _environment()
    return environment.get_template("page.html.jinja").render(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        verdict=verdict,
        facts=facts,
        summary=verdict_text.summary(verdict),
        reason=verdict_text.reason(verdict),
        remedy=next(iter(verdict.remedies), None),
        cost=_cost(facts),
        graph=draw_graph(graph) if graph.nodes else None,
        history=history,
        lanes=lanes(facts, history) if history else [],
        ticks=ticks(history) if history else [],
        stall_left=began,
        steps=blocks.step_table(facts),
        grids=blocks.collective_grids(facts),
        trees=blocks.stack_trees(verdict),
        diff=blocks.stack_diff(verdict),
        processes=blocks.shown_processes(facts),
        kernel_rows=blocks.kernel_rows(facts),
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
def _environment() -> tuple[Environment, str, str]:
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
    environment.globals.update(
        version=__version__,
        several=several,
        name_ranks=verdict_text.name_ranks,
        shortened=blocks.shortened,
        folded_lines=blocks.folded_lines,
        grid_words=blocks.ENTERED,
    )
    style, script = ((TEMPLATES / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return environment, style, script


def _shown(value: object) -> object:
    """Every value of the page goes through here, before it is escaped for HTML.

    What would turn the direction of writing, or is obeyed by a terminal into which the page is
    printed, is shown by its escape; lines stay lines; nothing is without end.
    """
    if type(value) is not str:  # what the templates and this package's own files hold is Markup
        return "" if value is None else value
    lines = _BREAKS.split(value[:LONGEST_SHOWN])
    return "\n".join(visible(line)[:LONGEST_TEXT] for line in lines)


def _hash(part: str) -> str:
    """As a content security policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
