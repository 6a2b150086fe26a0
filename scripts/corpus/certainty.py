"""How far a counted share, or a number of false alarms, can be trusted."""

from __future__ import annotations

import math

CONFIDENT = 1.959964
"""Standard deviations within which 95 % of a normal distribution lie."""
UNLIKELY = 0.05
HALVINGS = 60


def wilson(right: int, asked: int) -> tuple[float, float]:
    """Wilson's interval, in which the true share lies with 95 % confidence.

    Args:
        right: How many were right.
        asked: Of how many; at least one.
    """
    share, squared = right / asked, CONFIDENT**2
    middle = (share + squared / (2 * asked)) / (1 + squared / asked)
    spread = math.sqrt(share * (1 - share) / asked + squared / (4 * asked**2))
    reach = CONFIDENT * spread / (1 + squared / asked)
    return max(0.0, middle - reach), min(1.0, middle + reach)


def most_per_hour(seen: int, hours: float) -> float:
    """The rate above which so few events in so many hours would be a chance of one in twenty."""
    low, high = 0.0, 10.0 * (seen + 5)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        terms = (middle**count / math.factorial(count) for count in range(seen + 1))
        low, high = (middle, high) if math.exp(-middle) * sum(terms) > UNLIKELY else (low, middle)
    return high / hours
