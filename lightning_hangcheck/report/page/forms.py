"""A run in the forms that leave the terminal: page, issue, prompt for a coding agent, traces.

Everything of a page is imported when one is made: the sidecar imports the report from its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.model.verdict import Gap
from lightning_hangcheck.settings import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lightning_hangcheck.model import evidence
    from lightning_hangcheck.model.case import Case
    from lightning_hangcheck.model.verdict import Verdict
    from lightning_hangcheck.rundir import RunFolder

Form = Literal["page", "issue", "prompt", "perfetto"]
NO_PRICE = Prices()


def write_as(
    form: Form,
    folder: RunFolder,
    verdict: Verdict,
    case: Case | None,
    *,
    run_folder: str,
    prices: Prices = NO_PRICE,
    gaps: Iterable[evidence.Gap] = (),
    goes_on: bool = False,
) -> str:
    """Write a run as HTML that asks no host for anything, as Markdown, or for another tool."""
    from lightning_hangcheck.report.page.copied_text import issue_text, prompt_text
    from lightning_hangcheck.report.page.page_facts import PageFacts, read_page_facts
    from lightning_hangcheck.report.page.rendering import render_page
    from lightning_hangcheck.report.perfetto import render_trace

    writers = {
        "page": render_page,
        "issue": issue_text,
        "prompt": prompt_text,
        "perfetto": render_trace,
    }
    known = PageFacts(
        verdict=verdict,
        case=case,
        run_folder=run_folder,
        prices=prices,
        goes_on=goes_on,
        gaps=tuple(map(Gap.of, gaps)),
    )
    return writers[form](read_page_facts(folder, known, all_ranks=form == "perfetto"))


def prices_from(environment: Mapping[str, str]) -> Prices:
    """Read the prices that are set; one that cannot be read is none, and never costs the page."""
    try:
        return read_prices([environment.get(f"{PREFIX}PRICE", "")])
    except BadUsage:
        return NO_PRICE
