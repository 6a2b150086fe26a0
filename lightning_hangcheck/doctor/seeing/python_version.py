"""Is this Python one whose stacks can be read? One that is too new py-spy does not know yet."""

from __future__ import annotations

import sys

from lightning_hangcheck.doctor.check import Check

PYTHON_VERSION = "python version"
OLDEST = (3, 10)
NEWEST_READ = (3, 14)  # py-spy 0.4.2 and later, by its own list


def python_version(version: tuple[int, int] | None = None) -> Check:
    """Check the version of Python.

    Args:
        version: Major and minor; that of this Python where None.
    """
    found = version or sys.version_info[:2]
    text = f"{found[0]}.{found[1]}"
    if found < OLDEST:
        return Check(
            PYTHON_VERSION, "failed", f"Python {text} is too old", "use Python 3.10 or newer"
        )
    if found > NEWEST_READ:
        sentence = f"Python {text} is newer than what py-spy is known to read (up to 3.14)"
        return Check(PYTHON_VERSION, "warning", sentence, "pip install -U py-spy")
    return Check(PYTHON_VERSION, "ok", f"Python {text}")
