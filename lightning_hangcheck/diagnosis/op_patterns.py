"""Which of several operations do the earlier steps lead to?"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

LONGEST_CONTEXT = 16
"""Operations before the one in question that are compared with earlier ones."""
Item = TypeVar("Item", bound=Hashable)


def expected_next(
    history: Sequence[Item], candidates: Sequence[Item], shortest_context: int
) -> Item | None:
    """Return the one candidate that followed before, where what came before was the same.

    The longest context that any candidate ever followed decides; where several followed it, none
    is expected more than the other.

    Args:
        history: What was done so far, oldest first.
        candidates: What may come next.
        shortest_context: How many equal operations before it are asked for at least; with 0, a
            candidate that was ever seen at all is expected over those that never were.
    """
    for length in range(min(LONGEST_CONTEXT, len(history)), shortest_context - 1, -1):
        context = history[len(history) - length :]
        followers = {
            history[end]
            for end in range(length, len(history))
            if history[end - length : end] == context
        }
        found = [candidate for candidate in dict.fromkeys(candidates) if candidate in followers]
        if found:
            return found[0] if len(found) == 1 else None
    return None
