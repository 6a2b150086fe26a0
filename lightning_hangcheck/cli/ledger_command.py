"""`hangcheck ledger`: what ran, how long, what it cost, and whether a phase must run again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from lightning_hangcheck.cli import options as cli
from lightning_hangcheck.errors import BadUsage, UnreadableRun
from lightning_hangcheck.files import NoAnswerFromStorage, apart
from lightning_hangcheck.ledger import ledger_file
from lightning_hangcheck.ledger.phase_reuse import decide, question
from lightning_hangcheck.ledger.spending import Prices, read_prices
from lightning_hangcheck.model.codec import encode_pretty
from lightning_hangcheck.report import ledger_text
from lightning_hangcheck.settings import from_environment
from lightning_hangcheck.text.shown import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.ledger.ledger_file import History

Answer = TypeVar("Answer")
READ_LIMIT_S = 10.0
CHECK_LIMIT_S = 120.0  # At most 64 MiB of each file are read.


class Asked(NamedTuple):
    """Which ledger to read, and at which prices."""

    ledger: str | None
    prices: Prices

    def read(self) -> History:
        """Read the ledger and join its lines into a history of phases."""
        file = ledger_file.find_ledger(self.ledger)
        return _answered(READ_LIMIT_S, lambda: ledger_file.read(file), str(file))


@click.group(
    "ledger",
    invoke_without_command=True,
    no_args_is_help=False,
    epilog=cli.examples(
        "hangcheck ledger",
        "hangcheck ledger --price 0.89/h",
        "hangcheck ledger --price A100=1.89/h --price H100=2.99/h --csv > costs.csv",
        "hangcheck ledger --markdown >> EXPERIMENT_LOG.md",
        "hangcheck ledger --chart costs.png",
        "hangcheck ledger compare 7b 70b",
        "hangcheck ledger check train",
    ),
)
@cli.option("--ledger", "FILE", "The ledger [hangcheck_runs/ledger.jsonl] (HANGCHECK_LEDGER).")
@cli.many(
    "--price prices",
    "PRICE",
    "One rank for an hour: 0.89/h, or by GPU model A100=1.89/h (HANGCHECK_PRICE).",
)
@cli.option("--json", None, "Print all of it as JSON, for programs.")
@cli.option("--csv", None, "Print phases and runs as CSV.")
@cli.option("--markdown", None, "Print tables for a log.")
@cli.option("--chart", "FILE", "Draw it into a PNG file (needs lightning-hangcheck[plots]).")
@click.pass_context
def ledger(
    context: click.Context,
    /,
    ledger: str | None,
    prices: tuple[str, ...],
    **forms: str | bool | None,
) -> int:
    """Print what ran, how long, what it cost, and what was thrown away.

    Phases are those of hc.phase in a script, runs those that hangcheck watched. Exit code 2 if the
    ledger cannot be read.
    """
    settings = from_environment(os.environ)
    context.obj = Asked(ledger or settings.ledger, read_prices(prices or [settings.price or ""]))
    form, chart = cli.only_form("ledger", forms), str(forms["chart"])
    if context.invoked_subcommand is not None:
        if form is not None:
            wrong = f"--{form} is of all that is in the ledger, not of {context.invoked_subcommand}"
            raise BadUsage(wrong, f"leave out one of both: hangcheck ledger --{form}")
        return 0
    totals = ledger_text.sum_up(context.obj.read(), context.obj.prices)
    if form == "json":
        click.echo(encode_pretty(totals), nl=False)
    elif form == "csv":
        click.echo(ledger_text.render_csv(totals), nl=False)
    elif form == "chart":
        picture = ledger_text.draw(totals)
        try:
            apart(READ_LIMIT_S, lambda: Path(chart).write_bytes(picture))
        except (OSError, NoAnswerFromStorage) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise BadUsage(
                f"--chart {chart} cannot be written ({why})", "name a file that you may write"
            ) from error
        click.echo(f"drawn: {chart}")
    else:
        click.echo(ledger_text.render(totals, markdown=form == "markdown"), nl=False)
    return 0


COMPARED = cli.examples(
    "hangcheck ledger compare 7b 70b",
    "hangcheck ledger --price 0.89/h compare '--model 7b' '--model 70b'",
)
CHECKED = cli.examples(
    "hangcheck ledger check train", "hangcheck ledger --price 0.89/h check train"
)


@ledger.command("compare", short_help="Show runs or phases side by side.", epilog=COMPARED)
@click.argument("names", nargs=-1, required=True, metavar="NAME NAME...")
@click.pass_obj
def compare(given: Asked, names: tuple[str, ...]) -> int:
    """Show runs or phases beside each other: time, price, and where the time went.

    NAME is that of a run or of a phase, or words in a run's command; of several the newest counts.
    Exit code 2 if the ledger cannot be read or has none.
    """
    totals = ledger_text.sum_up(given.read(), given.prices)
    click.echo(ledger_text.render_side_by_side(totals, names), nl=False)
    return 0


@ledger.command("check", short_help="Say whether a phase must run again.", epilog=CHECKED)
@click.argument("name")
@click.pass_obj
def check(given: Asked, name: str) -> int:
    """Say whether phase NAME must run again, by its metric and the files that it was made from.

    Exit code 0: what it made can be reused. 1: it must run. 3: a person must choose; the two ways
    are printed with time and price. 2 if the ledger cannot be read or has no such phase.
    """
    history = given.read()
    if not any(phase.name == name for phase in history.phases):
        known = ", ".join(dict.fromkeys(phase.name for phase in history.phases)) or "no phases yet"
        raise BadUsage(f"the ledger has no phase {name}", f"it has {known}")
    decision = _answered(
        CHECK_LIMIT_S, lambda: decide(history, name, "ask"), f"the files of phase {name}"
    )
    if decision.earlier is None or decision.act == "reuse":
        click.echo(visible(f"{decision.act}: phase {name}: {decision.why}"))
    else:
        click.echo(f"{decision.act}: {question(decision, 'ask', given.prices)}")
    return {"reuse": 0, "run": 1, "ask": 3}[decision.act]


def _answered(limit_s: float, work: Callable[[], Answer], what: str) -> Answer:
    """Do work on storage; UnreadableRun if the storage does not answer in time."""
    try:
        return apart(limit_s, work)
    except NoAnswerFromStorage as error:
        raise UnreadableRun(
            f"{what} cannot be read ({error})", "see whether its storage answers: stat -f on it"
        ) from error
