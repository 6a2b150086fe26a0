"""What a training script calls: checkpoint, section, beat."""

from __future__ import annotations

from lightning_hangcheck.recorder.recording import current, heart
from lightning_hangcheck.recorder.sections import Section


def checkpoint(name: str, number: int | None = None) -> None:
    """Say that this rank has passed a named point: on the console, in the journal, to the sidecar.

    Under 10 microseconds. Never raises and never waits.

    Args:
        name: For people; one line, secrets are hidden, 200 characters are shown.
        number: None for one more than the last one.
    """
    current().checkpoint(name, number)


def section(name: str) -> Section:
    """Mark code that may hang: a line before, one after, and the sidecar knows where the rank is.

    Args:
        name: What is called, for example ``"WandbLogger constructor"``.

    Returns:
        A context manager. An exception that leaves it is shown and goes on.
    """
    return Section(current(), name)


beat = heart().beat
"""Say "I advanced", under 0.3 microseconds. Never raises, never waits; any thread may call it."""
