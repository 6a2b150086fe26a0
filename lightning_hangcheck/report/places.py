"""From a stack to the line of the user's own code, in few columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from lightning_hangcheck.model.code_owner import is_users

if TYPE_CHECKING:
    from collections.abc import Sequence

_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)")


class Place(NamedTuple):
    """A function and where in it, for example ``prepare`` and ``train.py:88``."""

    function: str = ""
    line: str = ""


def user_place(frames: Sequence[str]) -> Place:
    """Find the innermost frame of the user's own code.

    Args:
        frames: Outermost first, each ``func (file:line)``.

    Returns:
        That frame's place with its path cut to the last two parts; the innermost frame of all where
        none is the user's; an empty place where no frame can be read.
    """
    read = [found for frame in reversed(frames) if (found := _FRAME.fullmatch(frame))]
    own = [found for found in read if is_users(found["file"])]
    for found in own or read:
        return Place(found["function"], f"{short_path(found['file'])}:{found['line']}")
    return Place()


def short_path(path: str) -> str:
    """Keep the last two parts of a path, enough to tell files of one project apart."""
    return "/".join(path.split("/")[-2:])
