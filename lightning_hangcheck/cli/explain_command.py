"""`hangcheck explain`: what a cause means, how it is recognised, and what helps."""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.judge.knowledge import causes_file
from lightning_hangcheck.report.paragraphs import labelled, wrapped

if TYPE_CHECKING:
    from lightning_hangcheck.judge.knowledge import RemedyKnowledge
    from lightning_hangcheck.model.slugs import Cause

SKILL_FILE = Path(__file__).parent / "SKILL.md"
MOST = 40
WORDS = {
    "rank": "RANK",
    "pid": "PID",
    "place": "FILE:LINE",
    "function": "FUNCTION",
    "test": ", under ITS TEST",
    "unused": "SO MANY GiB",
}
"""What a reader sees in place of the values that a verdict fills in."""


@cli.command(
    "explain", "hangcheck explain", "hangcheck explain rank_stalled", "hangcheck explain --agent"
)
@click.option("--agent", is_flag=True, help="Print what a coding agent needs to know of hangcheck.")
@click.argument("cause", required=False, metavar="[CAUSE]")
def explain(cause: str | None, *, agent: bool) -> int:
    """Print what a cause means, how it is recognised, and what helps.

    Without CAUSE all of them are listed. A verdict names its cause behind `why`.
    """
    causes = causes_file().cause
    if agent:
        click.echo(SKILL_FILE.read_text(encoding="utf-8"), nl=False)
        return 0
    if cause is None:
        width = max(map(len, causes))
        for name, known in causes.items():
            click.echo(f"{name:<{width}}  {known.title}")
        return 0
    slug = cause.strip().lower().replace("-", "_")
    if slug not in causes:
        near = get_close_matches(slug, causes, n=3, cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}?" if near else "list them: hangcheck explain"
        raise BadUsage(f"{cause!r} is not a cause", remedy)
    click.echo(render(slug), nl=False)
    return 0


def render(cause: Cause) -> str:
    """Write the page of one cause as plain text.

    Raises:
        KeyError: The cause has no page.
    """
    known = causes_file().cause[cause]
    lines = [
        *wrapped(f"{cause}: {known.title}", "", "", MOST),
        "",
        *labelled("what", known.explanation, MOST),
        *(labelled("seen by", known.recognised, MOST) if known.recognised else []),
    ]
    heading = "A verdict shows only what fits, with the words in capitals filled in."
    lines += labelled("do", heading, 1)
    for number, remedy in enumerate(known.remedies, start=1):
        limits = ", ".join(filter(None, (remedy.raised, remedy.needs, remedy.phase)))
        when = f" ({limits})" if limits else ""
        below = " " * len(f"{number}. ")
        text = f"{number}. {remedy_text(remedy)}{when}\n{below}see {remedy.see}"
        lines += labelled("", text, MOST)
    return "\n".join(lines) + "\n"


def remedy_text(remedy: RemedyKnowledge) -> str:
    """Write a remedy with words in capitals in place of a verdict's values."""
    text = f"{remedy.text}: {remedy.command}" if remedy.command else remedy.text
    return re.sub(r"\{(\w+)\}", lambda match: WORDS.get(match[1], match[0]), text)
