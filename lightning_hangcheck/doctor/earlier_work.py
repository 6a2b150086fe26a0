"""What the ledger tells of earlier runs and phases, where there is one that can be read in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.apart import NoAnswerFromStorage, apart
from lightning_hangcheck.ledger import book
from lightning_hangcheck.ledger.book import Pages

if TYPE_CHECKING:
    from lightning_hangcheck.doctor.subject import Subject

READ_LIMIT_S = 2.0


def read_ledger(subject: Subject) -> Pages:
    """Read the ledger that the run will write to; nothing where it cannot be read.

    Args:
        subject: The run.
    """
    ledger = book.find_ledger(subject.environment.get("HANGCHECK_LEDGER") or None)
    try:
        return apart(READ_LIMIT_S, lambda: book.read(ledger))
    except (UnreadableRun, NoAnswerFromStorage):
        return Pages()
