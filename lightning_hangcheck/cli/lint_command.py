"""`hangcheck lint`: find code that would make ranks diverge, before it runs."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import click
import msgspec

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.cli.showing import say, show
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.lint import linting
from lightning_hangcheck.lint.rules import RULES

MARKED = """

A finding that is meant is marked on its line:

\b
  dist.barrier()  # hangcheck: ignore[HC101] rank 1 comes from serve()
"""
EXAMPLES = cli.examples(
    "hangcheck lint",
    "hangcheck lint train.py src --notes",
    "hangcheck lint --sarif > hangcheck.sarif",
    "hangcheck lint --explain HC101",
)
FOUND, UNUSABLE = 1, 2


@cli.command("lint", epilog=EXAMPLES + MARKED)
@click.argument("paths", nargs=-1, metavar="[PATH...]", type=click.Path(path_type=Path))
@click.option("--notes", is_flag=True, help="Also what may make ranks diverge, not only what will.")
@cli.option("--json", None, "Print one object.")
@cli.option("--sarif", None, "Print a SARIF 2.1.0 log.")
@cli.option("--github", None, "Print annotations for GitHub.")
@click.option("--explain", metavar="CODE", help="Print what a rule finds and why that hangs.")
def lint(paths: tuple[Path, ...], explain: str | None, *, notes: bool, **forms: bool) -> int:
    """Find in source code what would make ranks diverge, before it runs.

    PATH is a Python file or a folder, the working folder without one. Nothing of it is imported
    or run. Settings are in [tool.hangcheck.lint] of pyproject.toml.

    Exit code: 0 nothing was found, 1 something was, 2 a path or file cannot be used.
    """
    form = cli.only_form("lint", forms)
    if explain is not None:
        known = RULES.get(explain.strip().upper())
        if known is None:
            raise BadUsage(f"{explain!r} is not a rule", f"known are {', '.join(sorted(RULES))}")
        click.echo(f"{known.code}: {inspect.cleandoc(known.doc)}\n\nSee: {known.see}")
        return 0
    places = paths or (Path(),)
    configuration, base = linting.read_configuration(places[0])
    if notes:
        configuration = msgspec.structs.replace(configuration, notes=True)
    found = linting.lint(places, configuration, base)
    if found.unreadable and not found.files:
        raise BadUsage("; ".join(found.unreadable), "name a Python file or a folder")
    if form in ("json", "sarif"):
        log = linting.as_json(found) if form == "json" else linting.as_sarif(found)
        click.echo(json.dumps(log, indent=2))
    elif form == "github":
        click.echo(linting.as_github(found), nl=False)
    elif found.files or not found.unreadable:  # else there is nothing to sum up
        show(linting.as_text(found), linting.STYLES)
    for sentence in found.unreadable:
        say(sentence)
    return UNUSABLE if found.unreadable else FOUND if found.findings else 0
