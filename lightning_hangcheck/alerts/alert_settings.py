"""What was asked for when a hang is found, and what there is to tell of it."""

from __future__ import annotations

from msgspec import Struct

from lightning_hangcheck.model.slugs import VerdictKind

AT_THE_END_S = 15.0
"""For what is under way at the job's end, from then on: `hangcheck run` waits for it."""


class AlertsAskedFor(Struct, frozen=True, kw_only=True, tag="alerts"):
    """From `hangcheck run` to its sidecar, over their pipe: this holds secrets.

    It is on no command line, in no file and in no environment of a process of ours.

    Attributes:
        environment: Of `hangcheck run`: what the command is run with, and the proxies in it.
        packages: Folders of optional packages that a process of ours may not find by itself.
    """

    notify: tuple[str, ...] = ()
    on_hang_exec: str | None = None
    environment: dict[str, str] = {}
    packages: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there is anybody to tell."""
        return bool(self.notify) or self.on_hang_exec is not None


class HangNews(Struct, frozen=True, kw_only=True):
    """A hang that was found, for who gets a message.

    Attributes:
        number: Of the verdict in its run folder; None where it could not be saved in time.
    """

    kind: VerdictKind
    cause: str
    culprits: tuple[int, ...]
    title: str
    text: str
    run_dir: str
    number: int | None = None

    @property
    def verdict_file(self) -> str:
        """The verdict, which later ones do not replace; where it was not saved, the newest."""
        name = "verdict.json" if self.number is None else f"verdicts/{self.number}.json"
        return f"{self.run_dir}/{name}"

    @property
    def report_file(self) -> str:
        """The page, which is written a moment after the verdict."""
        return f"{self.run_dir}/report.html"


class Errand(Struct, frozen=True):
    """What the messenger reads from its standard input."""

    asked_for: AlertsAskedFor
    news: HangNews
