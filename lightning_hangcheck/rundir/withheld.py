"""What a rank did not start, and why: told beside where its worker server's socket would be."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from lightning_hangcheck.rundir.atomic import make_private_folder, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def withhold(socket: Path, why: str) -> None:
    """Leave the reason for the sidecar; where shared memory fails, there is no sidecar either."""
    with suppress(OSError):
        make_private_folder(socket.parent)
        write_atomically(_file(socket), why.encode(errors="replace"))


def why_withheld(socket: Path) -> str | None:
    """Return the reason that a rank left, None where it left none."""
    try:
        return _file(socket).read_text(errors="replace")
    except OSError:
        return None


def _file(socket: Path) -> Path:
    return socket.with_name(f"{socket.name}.withheld")
