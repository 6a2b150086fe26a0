"""Writes the ledger from a training process, with a time limit, and never in its way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.story import Story, tell
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from lightning_hangcheck.ledger.book import AnyLine

WRITE_LIMIT_S = 2.0
"""A line is written in microseconds; a network disk that is busy takes a second."""


class Scribe:
    """Keeps one ledger for one process.

    Args:
        named: Its file; None for the one of the working folder.
        writes: Whether this process is the one of its job that writes.
    """

    def __init__(self, named: str | None, *, writes: bool) -> None:
        self._ledger = _find(named)
        self._writes = writes

    def write(self, *lines: AnyLine) -> None:
        """Append lines and renew ``state.json``; what goes wrong is said once, and that is all.

        Storage that gave no answer once is not tried again.
        """
        if not self._writes or not lines:
            return
        try:
            within(WRITE_LIMIT_S, partial(self._write, lines))
        except Exception as error:  # noqa: BLE001 - whatever storage, names and values refuse
            self._writes = not isinstance(error, NoAnswer)
            log.once(
                "ledger",
                f"the ledger {self._ledger} cannot be written ({error}); training goes on; name "
                "one elsewhere: HANGCHECK_LEDGER",
            )

    def story(self) -> Story:
        """Return what the ledger tells so far; nothing where it cannot be read, which is said."""
        try:
            return within(WRITE_LIMIT_S, self._story)
        except Exception as error:  # noqa: BLE001 - as above
            log.once("ledger read", f"what was done before is not known: {error}")
            return Story()

    def _story(self) -> Story:
        return tell(book.read(self._ledger)) if self._ledger.exists() else Story()

    def _write(self, lines: tuple[AnyLine, ...]) -> None:
        for line in lines:
            book.append(self._ledger, line)
        book.write_state(self._ledger, tell(book.read(self._ledger)))


def _find(named: str | None) -> Path:
    try:
        return book.find_ledger(named)
    except OSError:  # the working folder was removed; the first line says that nothing fits there
        return Path(named or book.LEDGER_FILE)
