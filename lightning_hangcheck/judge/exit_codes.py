"""Exit codes in words: what a shell's number says of how a command ended."""

from __future__ import annotations

import signal

from lightning_hangcheck.judge.knowledge import causes_file

SHELL_SIGNAL_BASE = 128
SHELL_CODES = {
    126: "the command was found, but may not be run",
    127: "a command was not found",
}
"""Of POSIX shells (XCU 2.8.2), torchrun's own child among them where that is a shell."""


def exit_code_in_words(code: int) -> str:
    """Say what an exit code means: ``137: killed by SIGKILL (usually the kernel's ...)``.

    Args:
        code: As a shell shows it, or as Python's subprocess does (below 0: killed by that signal).

    Returns:
        The number as a shell shows it, and its meaning where it has one that others gave it.
    """
    shown = shell_code(code)
    meaning = SHELL_CODES.get(shown, "")
    number = ending_signal_of(code)
    if number is not None:
        name = signal_name(number)
        why = causes_file().signals.get(name, "")
        meaning = f"killed by {name}{f' ({why})' if why else ''}"
    return f"{shown}: {meaning}" if meaning else f"{shown}"


def shell_code(exit_code: int) -> int:
    """Return an exit code as a shell shows it: 128 plus the number of the signal that killed."""
    return exit_code if exit_code >= 0 else SHELL_SIGNAL_BASE - exit_code


def ending_signal_of(code: int) -> int | None:
    """Return the signal that an exit code tells of; a shell between reports 128 plus that."""
    number = -code if code < 0 else code - SHELL_SIGNAL_BASE
    return number if number in set(signal.Signals) else None


def signal_name(number: int) -> str:
    """Return a signal's name; its number in words where this machine has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
