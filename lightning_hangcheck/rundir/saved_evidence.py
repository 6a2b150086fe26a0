"""Reads the evidence that a run folder keeps: the newest case that is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.decoding import decode, unreadable
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned
from lightning_hangcheck.model.case import Case
from lightning_hangcheck.model.evidence import Gap

if TYPE_CHECKING:
    from lightning_hangcheck.rundir.layout import RunFolder

CASE_FILE = "case.json"


def newest_case(folder: RunFolder) -> tuple[Case | None, tuple[Gap, ...]]:
    """Read the newest case of a run.

    Returns:
        The case, None where none was saved; and a gap for each newer one that is torn.

    Raises:
        UnreadableRun: There is evidence, but none of it can be read.
    """
    gaps: list[Gap] = []
    refused: UnreadableRun | None = None
    for number in reversed(folder.evidence_numbers()):
        file = folder.evidence(number) / CASE_FILE
        try:
            return decode(read_owned(file, EVIDENCE_BYTES), Case, str(file)), tuple(gaps)
        except FileNotFoundError:
            why = "it was not finished"
        except OSError as error:
            refused = refused or unreadable(file, error)
            why = f"it cannot be read ({error.strerror})"
        except UnreadableRun as error:
            refused = refused or error
            why = str(error.args[0])
        gaps.append(Gap(f"evidence {number} of {folder.path}", None, why, "saved_evidence"))
    if refused is not None:
        raise refused
    return None, tuple(gaps)
