"""Names and exceptions as one clean line: no newlines, no secrets, bounded."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from lightning_hangcheck.model.code_owner import is_users
from lightning_hangcheck.model.evidence import Frame
from lightning_hangcheck.model.redaction import redact_text

if TYPE_CHECKING:
    from types import TracebackType

LONGEST_NAME = 200
LONGEST_LAST_WORDS = 300
# redaction looks at this much of a message: enough for what is shown, whatever its length
_LOOKED_AT = 4000


@lru_cache(maxsize=256)
def clean_name(name: str) -> str:
    """A checkpoint's or section's name as it may be shown, at most 200 characters."""
    return one_line(name, LONGEST_NAME)


def one_line(text: str, longest: int) -> str:
    """Redact a text, join its lines and cut it, with an ellipsis where something is missing."""
    line = " ".join(redact_text(text[:_LOOKED_AT]).split())
    printable = "".join(letter if letter.isprintable() else "?" for letter in line)
    return printable if len(printable) <= longest else printable[: longest - 3] + "..."


def describe_exception(error: BaseException, longest: int = LONGEST_LAST_WORDS) -> str:
    """Type and message in one redacted line, for example ``ValueError: no such split``."""
    kind = one_line(type(error).__name__, longest // 2)
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may raise anything; the type is still told
        message = "(its message cannot be shown)"
    shown = one_line(message, longest - len(kind) - 2)
    return f"{kind}: {shown}" if shown else kind


def last_words(error: BaseException) -> str:
    """The exception and the innermost frame of the user's own code, at most 300 characters.

    Returns:
        For example ``ValueError: no such split in load_vocab (data.py:41)``; a long message gives
        way to the place.
    """
    frame = user_frame(error.__traceback__)
    place = "" if frame is None else " " + one_line(f"in {frame}", LONGEST_LAST_WORDS // 2)
    return describe_exception(error, LONGEST_LAST_WORDS - len(place)) + place


def user_frame(traceback: TracebackType | None) -> Frame | None:
    """The innermost frame of the user's own code; the innermost of all if there is none."""
    innermost = users = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        innermost = (code, traceback.tb_lineno)
        users = innermost if is_users(code.co_filename) else users
        traceback = traceback.tb_next
    found = users or innermost
    if found is None:
        return None
    code, line = found
    return Frame(code.co_name, _shorten(code.co_filename), line)


def _shorten(file: str) -> str:
    """Relative to the script's folder where it lies below it."""
    folder = sys.path[0] if sys.path else ""
    return file.removeprefix(f"{folder}{os.sep}") if folder else file
