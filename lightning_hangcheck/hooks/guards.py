"""A folder that one rank makes and all see, without a race and without waiting for dead storage."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.errors import BadUsage, MeetingFailed
from lightning_hangcheck.hooks.missing_ranks import details_of
from lightning_hangcheck.hooks.rendezvous import (
    Outcome,
    RendezvousPoint,
    await_outcome,
    decide,
    find_peer_group,
    join_rendezvous,
    next_point,
    post_arrival,
)
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current
from lightning_hangcheck.time_limit import NoAnswer, within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_hangcheck.hooks.rendezvous import PeerGroup


NOTICE_AFTER = 5.0  # seconds; within the 10 s after which the sidecar names a suspect


def check_limit(name: str, seconds: float | None) -> None:
    """Refuse a limit that is none.

    Args:
        name: Of the argument.
        seconds: As the caller gave it; None for the default.

    Raises:
        BadUsage: It is not above 0, or endless: everything here has a limit.
    """
    if seconds is not None and not 0 < seconds < float("inf"):
        raise BadUsage(f"{name}={seconds!r} is no positive number", f"write seconds: {name}=60.0")


def notice_after(limit: float) -> float:
    """Seconds after which a wait is worth a line: half of a limit that is short itself."""
    return min(NOTICE_AFTER, limit / 2)


@contextmanager
def said_while_waiting(sentence: str, limit: float) -> Iterator[None]:
    """Print a sentence once if the body takes longer than a few seconds.

    Args:
        sentence: Who waits for what.
        limit: Seconds after which the body gives up.
    """
    timer = threading.Timer(notice_after(limit), log.once, (sentence, sentence))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
    if peers.index != 0:
        post_arrival(point, b"")
        await_outcome(point, partial(_late, point)).unwrap()
        yield
        return
    yield from _go_first(point)


def _go_first(point: RendezvousPoint) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    except BaseException as error:
        # also on Ctrl-C and sys.exit: the others must not wait for a rank that leaves
        outcome = decide(point, _failure(point, error, time.monotonic() - started))
        if point.peers.peers_exist and isinstance(error, Exception):
            raise MeetingFailed(outcome.failure, outcome.remedy, outcome.details) from error
        raise
    decide(point, Outcome()).unwrap()


def _failure(point: RendezvousPoint, error: BaseException, seconds: float) -> Outcome:
    what = describe_exception(error)
    return Outcome(
        failure=f"{point.peers.noun} 0 failed in {point.name!r} after {seconds:.1f} s: {what}",
        remedy=f"mend what {point.peers.noun} 0 met (its traceback names the line)",
    )


def _late(point: RendezvousPoint) -> Outcome:
    return Outcome(
        failure=f"{point.peers.noun} 0 did not finish {point.name!r} within {point.time_limit:g} "
        f"s ({point.peers.noun} {point.peers.index} waited at {point.peers.place.where})",
        remedy="see where it is (py-spy dump --pid PID, or the verdict of hangcheck); if it is "
        "only slow, allow more time: timeout=... or HANGCHECK_MEETING_TIMEOUT=...",
        details=details_of(point, [0]),
    )


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
