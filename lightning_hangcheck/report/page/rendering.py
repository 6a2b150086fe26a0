"""Writes the page. What is shown is escaped in one place, whatever job it comes from."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.report.page.copied_text import issue_text, prompt_text
from lightning_hangcheck.report.page.history import identities, timeline
from lightning_hangcheck.report.page.stacks import (
    kernel_rows,
    shown_processes,
    stack_diff,
    stack_trees,
)
from lightning_hangcheck.report.page.tables import WORDS, collective_grids, differences, step_table
from lightning_hangcheck.report.page.wait_graph import draw_graph, wait_graph
from lightning_hangcheck.report.verdict_text import gap_lines, reason, stall_cost, summary
from lightning_hangcheck.text.shown import several, visible
from lightning_hangcheck.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment

    from lightning_hangcheck.report.page.page_facts import PageFacts


class FirstLines(Struct, frozen=True):
    """The head of the page.

    Attributes:
        who: The verdict's sentence.
        why: Cause, explanation and who waits; empty where the sentence says it all.
        now: The most likely remedy; empty where none is known.
        command: What can be typed for that remedy; empty where nothing can.
        explain: The command that says more of the cause; empty where there is no cause.
        cost: How long and how much; empty where nothing stands still.
        lost: What a restart throws away; empty where nobody can tell.
    """

    who: str
    why: str
    now: str
    command: str
    explain: str
    cost: str
    lost: str


def first_lines(facts: PageFacts) -> FirstLines:
    """Write the head of a page."""
    verdict = facts.verdict
    first = next(iter(verdict.remedies), None)
    return FirstLines(
        who=summary(verdict),
        why=reason(verdict),
        now="" if first is None else first.text,
        command="" if first is None else first.command,
        explain=f"hangcheck explain {verdict.cause}" if verdict.cause else "",
        cost=_cost(facts),
        lost=next((item.text for item in verdict.evidence if item.kind == "lost"), ""),
    )


def _cost(facts: PageFacts) -> str:
    cost = stall_cost(facts.verdict)
    if not cost:
        return ""
    gpus = {
        gpu.name
        for view in (facts.case.ranks if facts.case is not None else ())
        for look in view.processes
        for sample in look.samples[-1:]
        for gpu in sample.gpus
    }
    verdict = facts.verdict
    price = facts.prices.cost(sorted(gpus), max(1, verdict.world_size), verdict.stalled_for_s)
    return cost if price is None else f"{cost} = {price:.2f} at your price"


TEMPLATES = Path(__file__).parent / "templates"
LONGEST_TEXT = 4_000
LONGEST_SHOWN = 65_536
MOST_EVIDENCE = 200
_BREAKS = re.compile(r"\r\n|\r|\n")


def render_page(facts: PageFacts) -> str:
    """Write report.html.

    Args:
        facts: Of a run with a verdict.

    Returns:
        A whole page that asks no host for anything.
    """
    verdict = facts.verdict
    graph = wait_graph(verdict, facts.groups)
    return _render(
        "page",
        verdict=verdict,
        facts=facts,
        first=first_lines(facts),
        graph=draw_graph(graph) if graph.nodes else None,
        timeline=timeline(facts),
        steps=step_table(facts),
        grids=collective_grids(facts),
        trees=stack_trees(verdict),
        diff=stack_diff(verdict),
        processes=shown_processes(facts),
        kernel_rows=kernel_rows(facts),
        differences=differences(facts),
        identities=identities(facts),
        evidence=verdict.evidence[:MOST_EVIDENCE],
        gaps=list(gap_lines((*verdict.gaps, *facts.gaps)))[:MOST_EVIDENCE],
        issue=issue_text(facts),
        prompt=prompt_text(facts),
    )


def _render(name: str, **facts: object) -> str:
    """Fill a template, which lets the browser take its own style and script alone."""
    style, script = _part(f"{name}.css"), _part(f"{name}.js")
    return (
        _environment()
        .get_template(f"{name}.html.jinja")
        .render(
            style=style,
            script=script,
            style_hash=_hash(style),
            script_hash=_hash(script),
            **facts,
        )
    )


@cache
def _environment() -> Environment:
    """Imported late: the sidecar imports the report from its start."""
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
    environment.globals.update(version=__version__, several=several, grid_words=WORDS)
    return environment


def _shown(value: object) -> object:
    """Every value of the page goes through here, before it is escaped for HTML.

    What would turn the direction of writing, or is obeyed by a terminal into which the page is
    printed, is shown by its escape; lines stay lines; nothing is without end.
    """
    if type(value) is not str:  # what the templates and this package's own files hold is Markup
        return "" if value is None else value
    lines = _BREAKS.split(value[:LONGEST_SHOWN])
    return "\n".join(visible(line)[:LONGEST_TEXT] for line in lines)


@cache
def _part(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def _hash(part: str) -> str:
    """As a content security policy names an inline style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
