"""The page of a cause: what it is, how it is recognised, what helps.

What it says is in the knowledge files. They are imported inside the functions: the sidecar imports
the report from its start, but the judgement and its graph library (20 MB) only once it has
something to judge.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lightning_hangcheck.report.paragraphs import labelled, wrapped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_hangcheck.judge.knowledge import CauseKnowledge, RemedyKnowledge
    from lightning_hangcheck.model.slugs import Cause

MOST = 40
WORDS = {
    "rank": "RANK",
    "pid": "PID",
    "place": "FILE:LINE",
    "function": "FUNCTION",
    "test": ", under ITS TEST",
    "unused": "SO MANY GiB",
}
"""What a verdict fills in: here a word that a reader replaces."""


def render(cause: Cause) -> str:
    """Write the page of one cause as plain text.

    Raises:
        KeyError: It has no page.
    """
    known = causes()[cause]
    lines = [
        *wrapped(f"{cause}: {known.title}", "", "", MOST),
        "",
        *labelled("what", known.explanation, MOST),
        *(labelled("seen by", known.recognised, MOST) if known.recognised else []),
    ]
    told = "A verdict shows only what fits, with the words in capitals filled in."
    lines += labelled("do", told, 1)
    for number, remedy in enumerate(known.remedies, start=1):
        limits = ", ".join(filter(None, (remedy.raised, remedy.needs, remedy.phase)))
        when = f" ({limits})" if limits else ""
        below = " " * len(f"{number}. ")
        lines += labelled(
            "", f"{number}. {remedy_text(remedy)}{when}\n{below}see {remedy.see}", MOST
        )
    return "\n".join(lines) + "\n"


def render_list() -> str:
    """Write all causes that have a page, one line each."""
    width = max(map(len, causes()))
    return "".join(f"{cause:<{width}}  {known.title}\n" for cause, known in causes().items())


def explanation(cause: Cause, world_size: int, stuck: int) -> str:
    """Return one sentence on a cause, empty where none is known."""
    known = causes().get(cause)
    if known is None:
        return ""
    if world_size <= 1:
        return known.alone or known.explanation
    return known.together if stuck >= world_size and known.together else known.explanation


def causes() -> Mapping[Cause, CauseKnowledge]:
    """Return what is known of every cause that a rule gives, in the knowledge file's order."""
    from lightning_hangcheck.judge.knowledge import causes_file

    return causes_file().cause


def remedy_text(remedy: RemedyKnowledge) -> str:
    """Write a remedy with words that a reader replaces where a verdict fills in its own."""
    text = f"{remedy.text}: {remedy.command}" if remedy.command else remedy.text
    return re.sub(r"\{(\w+)\}", lambda match: WORDS.get(match[1], match[0]), text)
