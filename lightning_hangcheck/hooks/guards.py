"""Guards that a user puts around what one rank does and others wait for; `locked` is in `locks`.

Each has a time limit, and names who is missing and where they stand. They may raise and wait, which
nothing else of this package may.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.places import check_limit
from lightning_hangcheck.hooks.rendezvous import (
    Outcome,
    RendezvousPoint,
    await_outcome,
    decide,
    find_peer_group,
    join_rendezvous,
    next_point,
)
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.hooks.rendezvous import PeerGroup

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between two looks for a folder


def barrier(name: str, timeout: float | None = None, *, local: bool = False) -> None:
    """Wait until all ranks have come to the barrier of this name, before or after torch knows them.

    Example:
        >>> barrier("after data", timeout=300.0)

    It makes no collective call, whatever the backend: the ranks leave word in a folder in shared
    memory, or in a store that torch serves. So a rank that is missing leaves the process group
    usable, and no GPU waits. Under ``python train.py`` with ``Trainer(devices=2)`` the first
    process waits for nobody until Lightning has started the others, and then for all of them.

    Args:
        name: The same on all ranks; may be used any number of times.
        timeout: Seconds that a rank waits; HANGCHECK_MEETING_TIMEOUT by default, 60.
        local: Only the ranks of this node.

    Raises:
        MeetingFailed: On every rank that came, alike: which ranks are missing, the stack in which
            each of them stands (or why it cannot be seen), and after how long.
        BadUsage: The timeout is no positive number.
    """
    check_limit("timeout", timeout)
    recorder = current()
    peers = find_peer_group(recorder, local=local)
    if peers is not None and peers.size is None and peers.peers_exist:
        log.once("barrier-size", "how many ranks this node has is unknown: barriers take in all")
        peers = find_peer_group(recorder)
    if peers is not None:
        join_rendezvous(name, timeout or recorder.settings.meeting_timeout, peers=peers)


@contextmanager
def rank_zero_first(
    name: str, timeout: float | None = None, *, local: bool = False
) -> Iterator[None]:
    """Run the body on rank 0 first, then on all others at once.

    Example:
        >>> with rank_zero_first("tokenizer"):
        ...     tokenizer = load_or_train_tokenizer()

    Under ``python train.py`` with ``Trainer(devices=2)`` the first process never waits; the ranks
    that Lightning starts later find that it is done. A process without peers just runs the body.

    Args:
        name: Of the work, the same on all ranks; may be used any number of times.
        timeout: Seconds that the others wait for rank 0; HANGCHECK_MEETING_TIMEOUT by default.
        local: Let the first rank of each node go first, for work on a disk of the node.

    Raises:
        MeetingFailed: On every rank alike, if the body failed on rank 0 (there with its error as
            the cause) or was late. A first process without peers raises its own error unchanged.
        BadUsage: The timeout is no positive number.
    """
    check_limit("timeout", timeout)
    recorder = current()
    peers = find_peer_group(recorder, local=local)
    if peers is None:
        yield
        return
    point = next_point(peers, name, timeout or recorder.settings.meeting_timeout)
    if peers.index:
        point.arrive(b"")
        await_outcome(point, partial(_late, point)).unwrap()
        yield
        return
    started = time.monotonic()
    try:
        yield
    except BaseException as error:
        # also on Ctrl-C and sys.exit: the others must not wait for a rank that leaves
        after, what = time.monotonic() - started, describe_exception(error)
        failed = Outcome(
            failure=f"{peers.noun} 0 failed in {name!r} after {after:.1f} s: {what}",
            remedy=f"mend what {peers.noun} 0 met (its traceback names the line)",
        )
        outcome = decide(point, failed)
        if peers.peers_exist and isinstance(error, Exception):
            raise MeetingFailed(outcome.failure, outcome.remedy, outcome.details) from error
        raise
    decide(point, Outcome()).unwrap()


def _late(point: RendezvousPoint) -> Outcome:
    from lightning_hangcheck.hooks.missing_ranks import details_of

    peers = point.peers
    return Outcome(
        failure=f"{peers.noun} 0 did not finish {point.name!r} within {point.time_limit:g} s "
        f"({peers.noun} {peers.index} waited at {peers.place.where})",
        remedy="see where it is (py-spy dump --pid PID, or the verdict of hangcheck); if it is "
        "only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
        details=details_of(point, [0]),
    )


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
    made = _bounded("make", folder, limit, partial(_make, folder)) if first else ""
    _agree(f"made {path}", peers, limit, made)
    seen = "" if first else _bounded("see", folder, limit, partial(_see, folder, limit))
    _agree(f"seen {path}", peers, limit, seen)
    return folder


def tell_all(name: str, peers: PeerGroup | None, limit: float, payload: bytes) -> dict[int, bytes]:
    """Let every rank know what each brought. A rank that starts later knows of rank 0's only."""
    if peers is None:
        return {0: payload}
    return join_rendezvous(name, limit, payload, peers) | {peers.index: payload}


def _agree(name: str, peers: PeerGroup | None, limit: float, failure: str) -> None:
    # each may need the whole limit before it comes
    brought = tell_all(name, peers, 2 * limit, failure.encode())
    for rank, words in sorted(brought.items()):
        if words:
            raise MeetingFailed(
                f"rank {rank} {words.decode()}",
                "name a folder on storage that all ranks share and may write; see whether it "
                "answers: timeout 5 stat -f on its parent",
            )


def _bounded(verb: str, folder: Path, limit: float, work: partial[str]) -> str:
    """Do something with a folder whose storage may not answer; return what went wrong, in words."""
    started = time.monotonic()
    where = f"{folder.absolute()} on host {socket.gethostname()}"
    try:
        # a little longer than the look itself, which has the limit, too
        wrong = within(limit + LONGEST_PAUSE, work)
    except NoAnswer:
        return f"could not {verb} {where}: the storage gave no answer within {limit:g} s"
    except OSError as error:
        after = time.monotonic() - started
        return f"could not {verb} {where}, after {after:.1f} s: {error.strerror}"
    return wrong and f"did not see {where} {wrong}"


def _make(folder: Path) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    return ""


def _see(folder: Path, limit: float) -> str:
    deadline, pause = time.monotonic() + limit, FIRST_PAUSE
    while True:
        # opening the parent makes NFS forget what it remembers of names that did not exist
        with os.scandir(folder.absolute().parent):
            if folder.is_dir():
                return ""
        if time.monotonic() + pause > deadline:
            return f"within {limit:g} s, though rank 0 made it"
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
