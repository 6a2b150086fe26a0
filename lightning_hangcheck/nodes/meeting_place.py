"""Where processes of one job leave each other words: a folder, or a store that torch serves.

Neither opens a port. A store in a process of its own is `store_place`, one in a process that has
loaded torch `hooks.places`. A place that strangers can reach is sealed.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Protocol, TypeVar

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.files.safe import (
    EVIDENCE_BYTES,
    create_once,
    make_private_folder,
    read_owned,
    write_atomically,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Written = TypeVar("Written")
SEAL_BYTES = 32


class MeetingPlace(Protocol):
    """Keys and values that all who meet there see; `MeetingFailed` where it cannot be used."""

    @property
    def where(self) -> str:
        """The place in words, for an error's sentence."""

    def post(self, key: str, value: bytes) -> None:
        """Leave a value under a key; an older one is replaced as a whole."""

    def look(self, key: str) -> bytes | None:
        """Return the value under a key at once, None while there is none."""


class DecidingPlace(MeetingPlace, Protocol):
    """One where all can hold to the first message."""

    def decide(self, key: str, value: bytes) -> bytes:
        """Leave a value under a key unless one is there; return the one that stands for all."""


class NodesPlace(MeetingPlace, Protocol):
    """One where the nodes of a job meet: it reads many keys at once, and may hold some open."""

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value under each key."""

    def look(self, key: str) -> bytes | None:
        """Return the value under a key, None while there is none."""
        return self.look_all([key])[0]

    def close(self) -> None:
        """End it, also while another thread waits for an answer."""


class FolderPlace(NodesPlace):
    """Files in a folder that all who meet there see."""

    def __init__(self, folder: Path, largest: int = EVIDENCE_BYTES) -> None:
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

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read the file of each key that exists."""
        path = self._folder
        try:
            # see that the folder is ours before a message in it counts: anybody may have made it
            there = self._folder.lstat()
            if (there.st_dev, there.st_ino) != self._ours:
                make_private_folder(self._folder)
                self._ours = there.st_dev, there.st_ino
            found: list[bytes | None] = []
            for key in keys:
                path = self._folder / key
                try:
                    found.append(read_owned(path, self._largest))
                except FileNotFoundError:
                    found.append(None)
        except FileNotFoundError:
            return [None] * len(keys)
        except OSError as error:
            raise MeetingFailed(
                f"the ranks cannot meet: {path} cannot be read ({error.strerror})",
                "run all ranks as the same user",
            ) from error
        return found

    def close(self) -> None:
        """Nothing is held open."""


class SealedPlace(NodesPlace):
    """A place that strangers can reach, with a seal on each value.

    torch's store asks nobody who he is, and lists its keys to anybody. So the secret never goes
    there: each value carries an HMAC of it, its key and the job. Who has not the secret can leave
    nothing that is taken for a node's message. He may read what nodes tell, take it away, or repeat
    it.
    """

    def __init__(self, place: NodesPlace, secret: str, job: str) -> None:
        self._place = place
        self._secret = hashlib.sha256(f"{job}\0{secret}".encode()).digest()

    @property
    def where(self) -> str:
        """The place in words."""
        return self._place.where

    def post(self, key: str, value: bytes) -> None:
        """Seal a value and leave it."""
        self._place.post(key, self._seal(key, value) + value)

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value under each key, None for one without a seal of ours."""
        found: list[bytes | None] = []
        for key, data in zip(keys, self._place.look_all(keys), strict=True):
            seal, value = (data or b"")[:SEAL_BYTES], (data or b"")[SEAL_BYTES:]
            sealed = data is not None and hmac.compare_digest(seal, self._seal(key, value))
            found.append(value if sealed else None)
            if data is not None and not sealed:
                log.once(
                    f"seal of {key}",
                    f"what {self.where} has under {key} is not used, it has no seal of this job; "
                    "give all nodes the same HANGCHECK_NODES_TOKEN, if it is of this job",
                )
        return found

    def close(self) -> None:
        """End what the place holds open."""
        self._place.close()

    def _seal(self, key: str, value: bytes) -> bytes:
        return hmac.new(self._secret, key.encode() + b"\0" + value, hashlib.sha256).digest()
