"""Where processes of one job can leave each other a word: a folder, or a store that torch serves.

Neither opens a port. The store is `hooks.rendezvous.places`, for it needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.files.atomic import (
    create_once,
    make_private_folder,
    write_atomically,
)
from lightning_hangcheck.files.owned_file import EVIDENCE_BYTES, read_owned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Written = TypeVar("Written")


class MeetingPlace(Protocol):
    """Keys and values that all who meet there see."""

    @property
    def where(self) -> str:
        """The place in words, for an error's sentence."""

    def post(self, key: str, value: bytes) -> None:
        """Leave a value under a key; an older one is replaced as a whole.

        Raises:
            MeetingFailed: The place cannot be written.
        """

    def look(self, key: str) -> bytes | None:
        """Return the value under a key at once, None while there is none.

        Raises:
            MeetingFailed: The place cannot be read.
        """


class ClosablePlace(MeetingPlace, Protocol):
    """One that holds something open."""

    def close(self) -> None:
        """End it, also while another thread waits for an answer."""


class DecidingPlace(MeetingPlace, Protocol):
    """One where all can hold to the first word."""

    def decide(self, key: str, value: bytes) -> bytes:
        """Leave a value under a key unless one is there; return the one that stands for all.

        Raises:
            MeetingFailed: The place cannot be written.
        """


class FolderPlace:
    """Files in a folder that all who meet there see."""

    def __init__(self, folder: Path, largest: int = EVIDENCE_BYTES) -> None:
        """Meet in this folder; it is made with the first value.

        Args:
            folder: Of whoever meets there alone.
            largest: Bytes above which a value is refused.
        """
        self._folder = folder
        self._largest = largest
        self._ours: tuple[int, int] | None = None

    @property
    def where(self) -> str:
        """The folder."""
        return f"folder {self._folder}"

    def post(self, key: str, value: bytes) -> None:
        """Write the file of a key in one step."""
        self._write(key, lambda path: write_atomically(path, value))

    def decide(self, key: str, value: bytes) -> bytes:
        """Write the file of a key unless it is there; return what it holds."""
        return self._write(key, lambda path: create_once(path, value, self._largest))

    def _write(self, key: str, write: Callable[[Path], Written]) -> Written:
        path = self._folder / key
        try:
            make_private_folder(path.parent)
            return write(path)
        except OSError as error:
            raise MeetingFailed(
                f"the ranks cannot meet: {path} cannot be written ({error.strerror})",
                f"free space below {self._folder}, or make it writable",
            ) from error

    def look(self, key: str) -> bytes | None:
        """Read the file of a key, if it exists."""
        path = self._folder / key
        try:
            self._refuse_foreign()
            return read_owned(path, self._largest)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MeetingFailed(
                f"the ranks cannot meet: {path} cannot be read ({error.strerror})",
                "run all ranks as the same user",
            ) from error

    def close(self) -> None:
        """Nothing is held open."""

    def _refuse_foreign(self) -> None:
        """See that the folder is ours before a word in it counts: anybody may have made it first.

        Raises:
            OSError: It is a link, or somebody else's; FileNotFoundError while there is none.
        """
        found = self._folder.lstat()
        if (found.st_dev, found.st_ino) != self._ours:
            make_private_folder(self._folder)
            self._ours = found.st_dev, found.st_ino
