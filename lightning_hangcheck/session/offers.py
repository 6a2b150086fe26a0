"""What a rank offers in shared memory: its stacks, where no debugger may read it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from lightning_hangcheck.errors import UnreadableRun
from lightning_hangcheck.files.safe import decode, make_private_folder, read_owned, write_atomically
from lightning_hangcheck.session.session import sessions_folder

if TYPE_CHECKING:
    from pathlib import Path


FOLDER = "stacks"


class StackOffer(Struct, frozen=True, kw_only=True):
    """A rank's offer.

    Attributes:
        signal: That it answers.
        main_thread: Its identifier, as Python's threading has it.
        answers: Path of the file that it appends its stacks to.
    """

    pid: int
    started_ticks: int
    signal: int
    main_thread: int
    answers: str


def offer_file(session: Path, pid: int) -> Path:
    """Return where a process of a session leaves its offer."""
    return session / FOLDER / f"{pid}.json"


def find_offer(pid: int) -> StackOffer | None:
    """Return what a process of this user offers, in whichever session; None where it offers none.

    About 50 microseconds a session of this user's. It may be from an earlier process of that id.
    """
    for file in sessions_folder().glob(f"*/{FOLDER}/{pid}.json"):
        try:
            return decode(read_owned(file), StackOffer, str(file))
        except (OSError, UnreadableRun):
            continue
    return None


def withhold(socket: Path, why: str) -> None:
    """Leave the reason for the sidecar; where shared memory fails, there is no sidecar either."""
    with suppress(OSError):
        make_private_folder(socket.parent)
        write_atomically(socket.with_name(f"{socket.name}.withheld"), why.encode(errors="replace"))


def why_withheld(socket: Path) -> str | None:
    """Return the reason that a rank left, None where it left none."""
    try:
        return socket.with_name(f"{socket.name}.withheld").read_text(errors="replace")
    except OSError:
        return None
