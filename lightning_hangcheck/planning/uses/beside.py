"""What is kept beside the model, as a user writes it: ``operators=174M*complex64@cpu``."""

from __future__ import annotations

import math

from lightning_hangcheck.errors import BadUsage
from lightning_hangcheck.planning.plan import GB, Extra

COUNTS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9}
BYTES_OF_A_NUMBER = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "float32": 4,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""By torch's names of types."""
ON_CPU = "@cpu"


def read_extra(text: str) -> Extra:
    """Read one, as it stands behind ``--extra``.

    Raises:
        BadUsage: It has no name, or no size.
    """
    name, equals, size = text.partition("=")
    on_cpu = size.endswith(ON_CPU)
    try:
        wanted = _bytes(size.removesuffix(ON_CPU))
    except ValueError:
        wanted = math.nan
    if not (name.strip() and equals and 0 <= wanted < math.inf):
        raise BadUsage(
            f"--extra {text} is no NAME=GB and no NAME=COUNT*TYPE",
            "write for example --extra operators=6, or --extra operators=174M*complex64@cpu",
        )
    return Extra(name.strip(), int(wanted), on_cpu=on_cpu)


def _bytes(size: str) -> float:
    """Read GB, or a count of numbers and what each of them takes.

    Raises:
        ValueError: It is neither.
    """
    count, times, kind = size.partition("*")
    if not times:
        return float(size) * GB
    if kind.strip() not in BYTES_OF_A_NUMBER:
        raise ValueError(f"{kind} is no type of numbers")
    number, letter = count.strip(), count.strip()[-1:]
    factor = COUNTS.get(letter, 1.0)
    numbers = float(number[:-1] if letter in COUNTS else number) * factor
    return numbers * BYTES_OF_A_NUMBER[kind.strip()]
