"""Where processes of one job leave messages for each other: a folder, or a store of torch.

Only a process with torch can talk to a store, so a courier does (`hooks.places`). A late answer
ends the courier, and the next request starts another. Places that strangers can reach are sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from msgspec import Struct

from lightning_hangcheck import files, log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.isolation.command import environment_of_module, own_command
from lightning_hangcheck.machine import require_room
from lightning_hangcheck.model.codec import msgpack_decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

Written = TypeVar("Written")
SEAL_BYTES = 32


class MeetingPlace(Protocol):
    """Keys and values that all processes there see; `MeetingFailed` if it cannot be used."""

    @property
    def where(self) -> str:
        """The place in words, for error messages."""

    def post(self, key: str, value: bytes) -> None:
        """Store a value under a key; it replaces an older value as a whole."""

    def look(self, key: str) -> bytes | None:
        """Return the value under a key at once, None if there is none."""


class DecidingPlace(MeetingPlace, Protocol):
    """A place where all processes can agree on the first message."""

    def decide(self, key: str, value: bytes) -> bytes:
        """Store a value unless the key has one; return the value that counts for all."""


class NodesPlace(MeetingPlace, Protocol):
    """A place where the nodes of a job meet: it reads many keys at once, and may hold resources."""

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the value under each key."""

    def look(self, key: str) -> bytes | None:
        """Return the value under a key, None if there is none."""
        return self.look_all([key])[0]

    def close(self) -> None:
        """Close the place, even while another thread waits for an answer."""


class FolderPlace(NodesPlace):
    """Files in a folder that all processes there see."""

    def __init__(self, folder: Path, largest: int = files.EVIDENCE_BYTES) -> None:
        self._folder = folder
        self._largest = largest
        self._ours: tuple[int, int] | None = None

    @property
    def where(self) -> str:
        """The folder."""
        return f"folder {self._folder}"

    def post(self, key: str, value: bytes) -> None:
        """Write the file of a key in one step."""
        self._write(key, lambda path: files.write_atomically(path, value))

    def decide(self, key: str, value: bytes) -> bytes:
        """Write the file of a key unless it is there; return what it holds."""
        return self._write(key, lambda path: files.create_once(path, value, self._largest))

    def _write(self, key: str, write: Callable[[Path], Written]) -> Written:
        path = self._folder / key
        try:
            files.make_private_folder(path.parent)
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
            # check that the folder is ours before a message counts: anybody may have made it
            there = self._folder.lstat()
            if (there.st_dev, there.st_ino) != self._ours:
                files.make_private_folder(self._folder)
                self._ours = there.st_dev, there.st_ino
            found: list[bytes | None] = []
            for key in keys:
                path = self._folder / key
                try:
                    found.append(files.read_owned(path, self._largest))
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

    torch's store authenticates nobody, and lists its keys to anybody. So the secret never goes
    there: each value carries an HMAC of itself, its key and the job. Without the secret, nobody can
    forge a node's message. Strangers can still read, delete or repeat messages.
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
        """Return the value under each key, None for a value without a seal of ours."""
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


MODULE = "lightning_hangcheck.hooks.places"
SERVE, CONNECT = "serve", "connect"
CONNECTED_WITHIN_S = 20.0
"""The first node may start later; until then there is nobody to connect to."""
STARTED_WITHIN_S = CONNECTED_WITHIN_S + 160.0
"""Importing torch takes 2 s, and many times that if a whole job imports it at once."""
ANSWERED_WITHIN_S = 10.0
"""Limit for an answer that takes milliseconds."""
AGAIN_AFTER_S = 10.0
TASKS = 4
"""Threads of a process that loads torch with one computing thread."""
MOST_BYTES = 64 * 1024 * 1024
KEYS_AT_ONCE = 256
"""Keys of a request: with all evidence of jobs of 256 ranks, values stay below `MOST_BYTES`."""
END_LIMIT_S = 1.0


class Request(Struct, frozen=True):
    """To the courier: store a value under the only key; without a value, read each key."""

    keys: tuple[str, ...]
    value: bytes | None = None


class Answer(Struct, frozen=True):
    """From the courier; the first answer says that it is connected."""

    values: tuple[bytes | None, ...] = ()
    trouble: str = ""


class CourierPlace(NodesPlace):
    """A store on the first node: that of torchrun's agent, or one that the first sidecar offers.

    A node that ``serves`` the store does so as long as its courier lives.
    """

    def __init__(
        self, host: str, port: int, *, offered: bool = False, serves: bool = False
    ) -> None:
        self._address = host, str(port)
        self._offered = offered
        self._how = SERVE if serves else CONNECT
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._again_at = 0.0
        self._why = ""

    @property
    def where(self) -> str:
        """The store in words."""
        whose = "the first sidecar's" if self._offered else "torchrun's"
        return f"{whose} store at {':'.join(self._address)}"

    def post(self, key: str, value: bytes) -> None:
        """Set a key of the store."""
        self._ask(Request((key,), value))

    def look_all(self, keys: Sequence[str]) -> list[bytes | None]:
        """Read keys of the store, so few with each request that no answer takes long."""
        found: list[bytes | None] = []
        for at in range(0, len(keys), KEYS_AT_ONCE):
            asked = tuple(keys[at : at + KEYS_AT_ONCE])
            values = self._ask(Request(asked)).values
            if len(values) != len(asked):
                raise self._given_up("its answer has other keys than were asked for")
            found += values
        return found

    def close(self) -> None:
        """End the courier, even while another thread waits for its answer."""
        process = self._process
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_LIMIT_S)

    def _ask(self, request: Request) -> Answer:
        try:
            if self._process is None:
                self._start()
            answer = self._exchange(request, ANSWERED_WITHIN_S)
        except (OSError, RuntimeError, EOFError, msgspec.MsgspecError) as error:
            raise self._given_up(str(error)) from error
        if answer.trouble:
            raise self._given_up(answer.trouble)
        return answer

    def _start(self) -> None:
        if time.monotonic() < self._again_at:
            raise self._unusable()
        require_room(TASKS)
        self._line, theirs = Pipe()
        with theirs:
            self._process = subprocess.Popen(
                own_command(MODULE, self._how, *self._address, "lightning-hangcheck/nodes"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={**environment_of_module(), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            )
        connected = self._exchange(None, STARTED_WITHIN_S)
        if connected.trouble:
            raise self._given_up(connected.trouble)

    def _exchange(self, request: Request | None, limit_s: float) -> Answer:
        process, line, late = self._process, self._line, threading.Event()
        if process is None or line is None:
            raise BrokenPipeError("nobody can be asked")

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.daemon = True
        timer.start()
        try:
            if request is not None:
                line.send_bytes(msgspec.msgpack.encode(request))
            return msgpack_decoder(Answer).decode(line.recv_bytes(MOST_BYTES))
        except (OSError, EOFError) as error:
            if late.is_set():
                raise TimeoutError("no answer in time") from error
            raise BrokenPipeError(f"the process that talks with it has ended ({error})") from error
        finally:
            timer.cancel()

    def _given_up(self, why: str) -> MeetingFailed:
        self.close()
        if self._line is not None:
            self._line.close()
        self._process, self._line, self._why = None, None, why
        self._again_at = time.monotonic() + AGAIN_AFTER_S
        return self._unusable()

    def _unusable(self) -> MeetingFailed:
        """Return the error, also until the next attempt: any caller may be the one to report it."""
        return MeetingFailed(
            f"{self.where} cannot be used ({self._why})",
            "or name a folder that all nodes see: --nodes-dir",
        )
