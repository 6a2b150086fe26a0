"""When the faults of this rank strike."""

from __future__ import annotations

import os
import time
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from reference import strikes
from reference.pauses import Pauses

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from reference.faults import Fault, Place

SLOW_FIRST_STEP_S = 20.0
"""A slow start that many jobs have: compilation, caches, a cold disk."""
STRAGGLER_FACTOR = 5
"""Slower by this factor, a straggler still trains."""
WORTH_TELLING_S = 2.0
"""Pauses from which hangcheck begins to look."""

_STEP_STRIKES: dict[str, Callable[[], None]] = {
    "rank_stalled": strikes.wait_for_an_event_that_nobody_sets,
    "spinning": strikes.search_without_end,
    "process_stopped": strikes.stop_this_process,
    "process_dead": strikes.kill_this_process,
    "slow_first_step": lambda: strikes.tune_for_every_shape(SLOW_FIRST_STEP_S),
}


class Injection:
    """The faults of one rank, asked at each place where one could strike.

    Attributes:
        silent_server: The server that never answers, once ``logger_init`` has struck.
    """

    def __init__(self, faults: Sequence[Fault], rank: int) -> None:
        self.rank = rank
        self._faults = [fault for fault in faults if fault.rank == rank]
        self._struck: set[Fault] = set()
        self._lag = _Lag()
        self._pauses = Pauses(rank)
        self.silent_server: socket.socket | None = None

    def before_step(self, step: int) -> None:
        """Strike in training_step.

        Args:
            step: Optimizer steps done so far.

        Raises:
            ValueError: This is what the fault ``crashed`` does.
        """
        for fault in self._due("step", step):
            if fault.cause == "straggler":
                self._lag_behind(fault)
            elif fault.cause == "uneven_pauses":
                self._pause(fault, step)
            elif self._first_time(fault):
                self._announce(fault, f"at step {step}")
                if fault.cause == "crashed":
                    raise ValueError(f"loss of batch {step} is not a number: nan")
                _STEP_STRIKES[fault.cause]()
        self._lag.step_begins()

    def in_worker(self, worker: int, batch: int) -> None:
        """Strike in a DataLoader worker's ``__getitem__``: the first worker, at its batch."""
        for fault in self._due("worker", batch):
            if worker == 0 and self._first_time(fault):
                self._announce(fault, f"in worker {worker} at batch {batch}")
                strikes.read_a_record_that_never_arrives()

    def before_save(self, step: int) -> bool:
        """Whether this save meets a slow disk; only the first one does."""
        for fault in self._due("save", step):
            if self._first_time(fault):
                self._announce(fault, f"saving at step {step}")
                return True
        return False

    def before_logger(self) -> bool:
        """Strike where the logger is created.

        On rank 0, which creates the real one, wandb is pointed at a server that never answers; any
        other rank asks that server itself.

        Returns:
            Whether wandb must go online, so that the fault takes effect.
        """
        for fault in self._due("logger", 0):
            self._announce(fault, "creating the logger")
            self.silent_server, url = strikes.open_silent_server()
            if self.rank != 0:
                strikes.ask_the_silent_server(self.silent_server)
            os.environ.update(
                WANDB_BASE_URL=url, WANDB_API_KEY="0123456789" * 4, WANDB_MODE="online"
            )
            return True
        return False

    def before_rendezvous(self) -> None:
        """Strike just before the process group is made."""
        for fault in self._due("rendezvous", 0):
            self._announce(fault, "before the rendezvous")
            os.environ["MASTER_PORT"] = str(strikes.find_port_without_listener())

    def _due(self, place: Place, step: int) -> list[Fault]:
        return [
            fault
            for fault in self._faults
            if fault.kind.place == place and step >= (fault.step or 0)
        ]

    def _first_time(self, fault: Fault) -> bool:
        first = fault not in self._struck
        self._struck.add(fault)
        return first

    def _announce(self, fault: Fault, where: str) -> None:
        strikes.announce(fault.cause, self.rank, where)

    def _pause(self, fault: Fault, step: int) -> None:
        seconds = self._pauses.next_s()
        if seconds >= WORTH_TELLING_S:
            self._announce(fault, f"at step {step} for {seconds:.1f} s")
        time.sleep(seconds)

    def _lag_behind(self, fault: Fault) -> None:
        if self._first_time(fault):
            self._announce(fault, "from now on")
            self._lag.begin()
        strikes.tune_for_every_shape(self._lag.seconds)


class _Lag:
    """Learns how long this rank's steps take, then says how much longer they are to take."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._starts: list[float] = []

    def step_begins(self) -> None:
        """Note the moment, until the lag begins."""
        if not self.seconds:
            self._starts.append(time.monotonic())

    def begin(self) -> None:
        """From now on a step takes ``STRAGGLER_FACTOR`` times what the steps so far took."""
        pace = median(later - sooner for sooner, later in pairwise(self._starts))
        self.seconds = (STRAGGLER_FACTOR - 1) * pace
