"""A command line as it may be shown: without secrets, on one line, quoted as for a shell."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from lightning_hangcheck.text.plain_text import visible
from lightning_hangcheck.text.redaction import HIDDEN, redact_text
from lightning_hangcheck.text.secret_names import is_secret, looks_random, telling

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# --wandb_key=V, KEY=V, wandb.key=V, and hydra's +trainer.token=V and ++trainer.token=V
_ASSIGNED = re.compile(r"(?s)(?P<head>[+~]{0,2}(?P<name>-{0,2}\w[\w.-]*)=)(?P<value>.+)")
_SHORT_WITH_VALUE = re.compile(r"(?s)(?P<flag>-[A-Za-z])(?P<value>[^-=].+)")


def show_command(words: Sequence[str]) -> str:
    """Show a command line; the only way that one leaves this process.

    Args:
        words: As the kernel has them: only so it is certain which value belongs to which flag.

    Returns:
        One line for a POSIX shell, ``[redacted]`` in place of secrets.
    """
    return visible(" ".join(map(_quoted, _without_secrets(words))))


def _without_secrets(words: Sequence[str]) -> Iterator[str]:
    flag = ""
    for word in words:
        has_value = bool(flag) and (not word.startswith("-") or looks_random(word))
        if has_value and is_secret(telling(flag), word):
            yield HIDDEN
        else:
            yield _redacted(word)
        flag = word if word.startswith("-") and "=" not in word else ""


def _redacted(word: str) -> str:
    """A word by itself: what it assigns belongs to its name as a whole, blanks and commas too."""
    assigned = _ASSIGNED.fullmatch(word)
    if assigned and is_secret(telling(assigned["name"]), assigned["value"]):
        return f"{assigned['head']}{HIDDEN}"
    short = _SHORT_WITH_VALUE.fullmatch(word)
    if short and looks_random(short["value"]):
        return f"{short['flag']}{HIDDEN}"
    return redact_text(word)


def _quoted(word: str) -> str:
    """What stands for a secret needs no quotes: nobody types it again."""
    around = word.replace(HIDDEN, "")
    return word if word and shlex.quote(around) in (around, "''") else shlex.quote(word)
