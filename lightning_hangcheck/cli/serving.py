"""Serves a run's report to a browser of this machine until it is interrupted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from lightning_hangcheck.attach.running_job import running_ranks
from lightning_hangcheck.cli.showing import say
from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.report import unjudged
from lightning_hangcheck.report.page.forms import prices_from
from lightning_hangcheck.report.serving.run_pages import RunPages
from lightning_hangcheck.report.serving.server import ReportServer

if TYPE_CHECKING:
    from lightning_hangcheck.report.saved_run import SavedRun
    from lightning_hangcheck.rundir.layout import RunFolder


def serve(folder: RunFolder, shown_folder: str, port: int | None) -> None:
    """Print the address, and serve; Ctrl-C ends it.

    Args:
        folder: Of the run.
        shown_folder: As the reader should type it.
        port: None for one that is free.

    Raises:
        BadUsage: The port cannot be used.
    """

    def told(saved: SavedRun) -> str:
        return saved.refused or unjudged.render(saved, shown_folder, running_ranks(folder))

    pages = RunPages(folder, shown_folder, told, prices_from(os.environ))
    try:
        server = ReportServer(pages, port or 0)
    except OSError as error:
        raise BadUsage(
            f"port {port} cannot be used ({error.strerror})",
            "name another one with --port, or none: then a free one is taken",
        ) from error
    with server:
        click.echo(server.address)
        say("open this address in a browser of this machine; Ctrl-C ends it, the run goes on")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
