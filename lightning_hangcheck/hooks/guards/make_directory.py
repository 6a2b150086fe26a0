"""A folder that one rank makes and all see, without a race and without waiting for dead storage."""

from __future__ import annotations

import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous.peer_group import find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.hooks.wait_limit import check_limit
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from lightning_hangcheck.hooks.rendezvous.peer_group import PeerGroup

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks


def make_directory(path: str | os.PathLike[str], timeout: float | None = None) -> Path:
    """Make a folder on rank 0, with its parents, and return once every rank sees it.

    Example:
        >>> checkpoints = make_directory("runs/checkpoints")

    A network file system shows a new folder to other hosts only after a while: each rank looks
    until it is there. A storage that does not answer counts as a failure, not as a reason to wait.

    Args:
        path: The folder; one that exists is fine. Relative to each rank's working folder.
        timeout: Seconds for making it, and for seeing it; HANGCHECK_MEETING_TIMEOUT by default.

    Returns:
        The folder.

    Raises:
        MeetingFailed: On every rank alike: which rank could not make or see it, on which host, why,
            and after how long; or which ranks did not come.
        BadUsage: The timeout is no positive number.
    """
    check_limit("timeout", timeout)
    recorder = current()
    folder = Path(path)
    limit = timeout or recorder.settings.meeting_timeout
    peers = find_peer_group(recorder)
    first = peers is None or peers.index == 0
    failure = _make(folder, limit) if first else ""
    _agree(f"made {path}", peers, limit, failure)
    _agree(f"seen {path}", peers, limit, "" if first else _see(folder, limit))
    return folder


def _agree(name: str, peers: PeerGroup | None, limit: float, failure: str) -> None:
    """Let every rank know of every failure. A rank that starts later knows of rank 0's only."""
    brought = {0: failure.encode()}
    if peers is not None:
        # each may need the whole limit before it comes
        brought = join_rendezvous(name, 2 * limit, failure.encode(), peers) | {
            peers.index: failure.encode()
        }
    for rank, words in sorted(brought.items()):
        if words:
            raise MeetingFailed(
                f"rank {rank} {words.decode()}",
                "name a folder on storage that all ranks share and may write; see whether it "
                "answers: timeout 5 stat -f on its parent",
            )


def _make(folder: Path, limit: float) -> str:
    """Make it; return why not, in words."""
    started = time.monotonic()
    try:
        within(limit, partial(folder.mkdir, parents=True, exist_ok=True))
    except NoAnswer:
        return f"could not make {_named(folder)}: the storage gave no answer within {limit:g} s"
    except OSError as error:
        seconds = time.monotonic() - started
        return f"could not make {_named(folder)}, after {seconds:.1f} s: {error.strerror}"
    return ""


def _see(folder: Path, limit: float) -> str:
    """Look until it is there; return why not, in words."""
    started, pause = time.monotonic(), FIRST_PAUSE
    while True:
        left = limit - (time.monotonic() - started)
        try:
            if within(max(left, FIRST_PAUSE), partial(_is_there, folder)):
                return ""
        except NoAnswer:
            return f"could not see {_named(folder)}: the storage gave no answer within {limit:g} s"
        except OSError as error:
            return f"could not see {_named(folder)}: {error.strerror}"
        if left <= pause:
            return f"did not see {_named(folder)} within {limit:g} s, though rank 0 made it"
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _is_there(folder: Path) -> bool:
    """Opening the parent makes NFS forget what it remembers of names that did not exist."""
    with os.scandir(folder.absolute().parent):
        return folder.is_dir()


def _named(folder: Path) -> str:
    return f"{folder.absolute()} on host {socket.gethostname()}"
