"""What a check says."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class Check(Struct, frozen=True):
    """One thing that was checked before a run.

    Attributes:
        name: Of the check, for example ``"stacks readable"``.
        status: ``warning`` the run goes on with less, ``failed`` a promise cannot be kept.
        sentence: What was found.
        details: More of what was found, a line each, as it should stand.
        remedy: What to do, with a command or a line to change; empty where nothing is needed.
    """

    name: str
    status: Literal["ok", "warning", "failed"]
    sentence: str
    remedy: str = ""
    details: tuple[str, ...] = ()
