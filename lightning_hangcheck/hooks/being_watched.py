"""What a rank does so that it can be watched: it offers its records, and starts a sidecar.

Where `hangcheck run` did not start a sidecar, the first process of each node does.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lightning_hangcheck import log
from lightning_hangcheck.hooks.worker_server import offer_flight_record
from lightning_hangcheck.identity import identify
from lightning_hangcheck.machine.process_stat import is_alive
from lightning_hangcheck.model.run import NodePlace
from lightning_hangcheck.recorder.process.process_facts import is_multiprocessing_child
from lightning_hangcheck.recorder.stack_offer import offer_stacks
from lightning_hangcheck.session.job_key import job_key
from lightning_hangcheck.session.node_place import place_of, tell_place
from lightning_hangcheck.session.session import read_sidecar

if TYPE_CHECKING:
    from lightning_hangcheck.recorder.lifecycle import Recorder
    from lightning_hangcheck.session.session import Session

MOST_STARTS = 4  # the first, and three after a loss: a sidecar that dies again and again is no use


def be_watched(recorder: Recorder) -> None:
    """Open all that a watcher of this rank may ask for, and have its node watched.

    Whatever learns that this process is a rank calls it, also once its number is known: asking
    again opens what is missing, and changes nothing else.

    Args:
        recorder: Of this process.
    """
    if is_multiprocessing_child():
        recorder.be_rank_of_environment()
    recorder.begin_training()
    keep_sidecar(recorder)
    offer_flight_record(recorder)
    offer_stacks(recorder.session)


class SidecarKeeper:
    """Starts this node's sidecar, and a new one when it is lost.

    Attributes:
        starts: How often it was started.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.starts = 0

    def start(self) -> None:
        """Start it; a failure is said once, and training goes unwatched. Never raises."""
        session = self._recorder.session
        if session is None or self.starts == MOST_STARTS:
            return
        self.starts += 1
        # imported here: 20 ms that only a process pays which starts one
        from lightning_hangcheck.watch.link import start_sidecar

        try:
            start_sidecar(session, self._recorder.settings)
        except OSError as error:
            log.once("sidecar", f"the sidecar cannot be started ({error}); training goes unwatched")
            return
        if self.starts > 1:
            log.once("sidecar-again", "a new sidecar was started")


def keep_sidecar(recorder: Recorder) -> None:
    """Have this node watched, if it falls to this process. Asking again changes nothing.

    The sidecar of the round before goes on with this one.

    Args:
        recorder: Of this process.
    """
    session = recorder.session
    if session is None or session.facts.launched or recorder.on_sidecar_lost is not None:
        return
    if not _falls_to_us(recorder, session):
        return
    keeper = SidecarKeeper(recorder)
    recorder.on_sidecar_lost = keeper.start
    sidecar = read_sidecar(session.sidecar_file)
    if sidecar is None or not is_alive(sidecar.pid, sidecar.started_ticks):
        keeper.start()


def tell_of_nodes(recorder: Recorder, nnodes: int, number: int) -> None:
    """Tell this node's sidecar which of how many it is, where no launcher's variable does.

    Args:
        recorder: Of this process.
        nnodes: Nodes of the job, as its Trainer was told.
        number: Of this one, 0 for the first.
    """
    session, who = recorder.session, recorder.identity
    if session is None or nnodes < 2 or who.local_rank or place_of(session) is not None:
        return
    launched = identify(os.environ)
    place = NodePlace(
        number=number,
        nnodes=nnodes,
        ranks=(who.world_size or 0) // nnodes,
        job=job_key(os.environ, launched),
        first=launched.store_host or "",
    )
    try:
        tell_place(session, place)
    except OSError as error:
        log.once("place", f"this node's sidecar is not told which node it is on: {error}")


def _falls_to_us(recorder: Recorder, session: Session) -> bool:
    """Whether this is the first rank of its node, or the process that Lightning starts others from.

    Children of ``ddp_spawn`` have no rank yet when they ask; their parent has a sidecar already. A
    child without such a parent is watched where it trains alone: others it could not find.
    """
    identity = identify(os.environ)
    if identity.launcher in ("none", "lightning") and is_multiprocessing_child():
        size = recorder.identity.world_size
        nobodys = session.facts.root_pid == os.getpid()
        if nobodys and size is not None and size > 1:
            log.once(
                "child",
                "this rank is not watched: nothing tells a child of multiprocessing where its "
                "ranks meet; start the script with hangcheck run, or make HangCheck() before them",
            )
        return nobodys and size == 1
    return not (identity.rank if identity.local_rank is None else identity.local_rank)
