"""A check as it stands in the tables of the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from collections.abc import Callable

    from lightning_hangcheck.doctor.check import Check
    from lightning_hangcheck.doctor.subject import Subject

Group = Literal["seeing", "launch", "ranks", "environment", "storage", "data", "memory"]
GROUPS: tuple[Group, ...] = get_args(Group)
"""In the order in which they are shown; named here, where it costs no command a check's imports."""
LIMIT_S = 4.0
"""More than any healthy machine needs for what is not about other machines."""


class Question(NamedTuple):
    """One thing to check before a run.

    Attributes:
        group: By which it can be selected.
        about: Its name, where the check itself could not be made.
        looked_at: What is looked at.
        why: What goes wrong in a run where it is not ok.
        ask: Answers; nothing where the question does not arise in this run.
        limit_s: Seconds for the answer.
        alone: It takes what other checks want to find free, so it comes after them; and it starts
            processes, so it is asked where Ctrl-C ends them. It keeps its limits by itself.
    """

    group: Group
    about: str
    looked_at: str
    why: str
    ask: Callable[[Subject], tuple[Check, ...]]
    limit_s: float = LIMIT_S
    alone: bool = False
