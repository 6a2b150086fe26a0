"""A run in the forms that leave the terminal: page, issue, prompt for a coding agent, trace.

`page_facts` reads what a page needs, `rendering` fills the template with the blocks that `history`,
`wait_graph` and `blocks` make; `copied_text` writes the same as Markdown. Everything is imported
when a page is made: the sidecar imports the report from its start.
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

    Args:
        form: Of what is written.
        folder: Of the run.
        verdict: What it says.
        case: What the verdict was made from, None where it was not kept.
        run_folder: As the reader should type it.
        environment: With the price of an hour; one that cannot be read never costs the page.
        gaps: What of the run could not be read.
        goes_on: The page will be written again at the same place: it reloads itself.
    """
    from lightning_hangcheck.report.page.copied_text import issue_text, prompt_text
    from lightning_hangcheck.report.page.page_facts import PageFacts, read_page_facts
    from lightning_hangcheck.report.page.rendering import render_page
    from lightning_hangcheck.report.perfetto import render_trace

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
    if form == "page":
        return render_page(facts)
    if form == "perfetto":
        return render_trace(facts)
    return issue_text(facts) if form == "issue" else prompt_text(facts)
