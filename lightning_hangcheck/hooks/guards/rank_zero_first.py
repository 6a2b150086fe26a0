"""Let rank 0 do something first: download, build a cache, write a file that the others read."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from lightning_hangcheck.errors import MeetingFailed
from lightning_hangcheck.hooks.rendezvous.missing_ranks import details_of
from lightning_hangcheck.hooks.rendezvous.peer_group import find_peer_group
from lightning_hangcheck.hooks.rendezvous.point import Outcome, RendezvousPoint, next_point
from lightning_hangcheck.hooks.rendezvous.rendezvous import (
    await_outcome,
    decide,
    post_arrival,
)
from lightning_hangcheck.hooks.wait_limit import check_limit
from lightning_hangcheck.recorder.announcer import describe_exception
from lightning_hangcheck.recorder.lifecycle import current

if TYPE_CHECKING:
    from collections.abc import Iterator


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
