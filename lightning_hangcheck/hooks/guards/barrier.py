"""A barrier with a name and a time limit, that says who is missing and where they stand."""

from __future__ import annotations

from lightning_hangcheck import log
from lightning_hangcheck.hooks.rendezvous.peer_group import find_peer_group
from lightning_hangcheck.hooks.rendezvous.rendezvous import join_rendezvous
from lightning_hangcheck.hooks.wait_limit import check_limit
from lightning_hangcheck.recorder.lifecycle import current


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
