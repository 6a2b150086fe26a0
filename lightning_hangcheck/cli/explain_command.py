"""`hangcheck explain`: what a cause means, how it is recognised, and what helps."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report.causes import causes, render, render_list

if TYPE_CHECKING:
    from lightning_hangcheck.model.slugs import Cause

SKILL_FILE = Path(__file__).parent / "SKILL.md"
EPILOG = """\b
Examples:
  hangcheck explain
  hangcheck explain rank_stalled
  hangcheck explain --agent
"""


@click.command("explain", epilog=EPILOG)
@click.option("--agent", is_flag=True, help="Print what a coding agent needs to know of hangcheck.")
@click.argument("cause", required=False, metavar="[CAUSE]")
def explain(cause: str | None, *, agent: bool) -> int:
    """Print what a cause means, how it is recognised, and what helps.

    Without CAUSE all of them are listed. A verdict names its cause behind `why`.
    """
    if agent:
        click.echo(SKILL_FILE.read_text(encoding="utf-8"), nl=False)
        return 0
    if cause is None:
        click.echo(render_list(), nl=False)
        return 0
    slug = cause.strip().lower().replace("-", "_")
    if slug not in causes():
        near = get_close_matches(slug, causes(), n=3, cutoff=0.5)
        remedy = f"did you mean {' or '.join(near)}?" if near else "list them: hangcheck explain"
        raise BadUsage(f"{cause!r} is not a cause", remedy)
    click.echo(render(cast("Cause", slug)), nl=False)
    return 0
