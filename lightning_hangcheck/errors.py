"""Errors that a user can cause: each says what happened and what to do."""

from __future__ import annotations


class HangcheckError(Exception):
    """Base of all errors that this package raises on purpose.

    Attributes:
        remedy: What to do now, in one clause.
        exit_code: Exit code of the command line.
    """

    exit_code = 2

    def __init__(self, message: str, remedy: str, *more: str) -> None:
        super().__init__(message, remedy, *more)  # all arguments, for pickle
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.args[0]}; {self.remedy}"


class BadUsage(HangcheckError):
    """An option, argument or environment variable that cannot be used."""


class UsedRunFolder(HangcheckError):
    """The run folder holds another run."""


class UnpreparedRunFolder(HangcheckError):
    """The run folder cannot be made or written."""


class UnreadableRun(HangcheckError):
    """A run folder, or a file in it, cannot be read."""


class NoJobFound(HangcheckError):
    """There is no job to attach to, or it may not be read."""

    exit_code = 4


class MeetingFailed(HangcheckError):
    """Ranks did not meet, or the work there failed; ``details`` says where the missing ones are."""

    def __init__(self, message: str, remedy: str, details: str = "") -> None:
        super().__init__(message, remedy, details)
        self.details = details

    def __str__(self) -> str:
        return "\n".join(filter(None, (super().__str__(), self.details)))


class LockHeld(HangcheckError):
    """A file lock was not free in time."""


class StepOutOfTurn(HangcheckError):
    """An evaluation came twice, or one before it was left out."""


class ResultsIncomplete(HangcheckError):
    """An evaluation did not leave the files that it should, or not with their rows and columns."""
